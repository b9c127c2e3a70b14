"""Records by network, and what a summary over the seeds says.

One statistic for a quantity everywhere: the mean for accuracies and errors, the median for seconds.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feta_lab import paper
from feta_lab.results import Record


@dataclass(frozen=True)
class Spread:
    """Mean, lowest, highest and median of a few values; `n` is how many."""

    mean: float
    low: float
    high: float
    n: int
    median: float


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of some values, or None where there are none: spread([1, 2, 6]).mean is 3."""
    if held := list(values):
        return Spread(statistics.fmean(held), min(held), max(held), len(held), statistics.median(held))
    return None


def at_sparsity(records: Iterable[Record], sparsity: float) -> list[Record]:
    """The records of one sparsity."""
    return [record for record in records if abs(record["sparsity"] - sparsity) < 1e-9]


def by_setting(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by network, the paper's networks first.

    A network that was run on several data sets or devices has an entry for each, which its label names.
    """
    places: dict[str, dict[tuple[str, str], list[Record]]] = {}
    for record in records:
        place = (str(record.get("data_name", "")), str(record.get("device", "")))
        places.setdefault(record["net"], {}).setdefault(place, []).append(record)
    order = [net for net in paper.NETS if net in places] + [net for net in places if net not in paper.NETS]
    return {
        net if len(places[net]) == 1 else f"{net} ({data}, {device})": mine
        for net in order
        for (data, device), mine in places[net].items()
    }


def failures(records: Iterable[Record]) -> dict[str, str]:
    """method -> why it has no result, for methods that failed on some seed."""
    return {r["method"]: r.get("reason") or "no reason recorded" for r in records if r["accuracy"] is None}


def method_order(records: Iterable[Record]) -> tuple[str, ...]:
    """feta first, then feta with options, then the paper's methods in its order, then the others as they come."""
    names = dict.fromkeys(record["method"] for record in records)
    places = {"feta": 0, **{name: place for place, name in enumerate(paper.METHODS, start=2)}}
    return tuple(sorted(names, key=lambda name: places.get(name, 1 if name.startswith("feta:") else len(places) + 1)))


def duration(seconds: float) -> str:
    """Seconds in words, with about two digits: 2 ms, 0.5 s, 26 s, 3.2 min, 1.5 h."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms" if seconds >= 1e-4 else "0 ms"
    limits = ((99.5, 1, "s"), (5970, 60, "min"), (math.inf, 3600, "h"))
    size, unit = next((size, unit) for limit, size, unit in limits if seconds < limit)
    amount = seconds / size
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
