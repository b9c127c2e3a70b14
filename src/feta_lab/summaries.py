"""Records by network, method and seed, and what a summary over the seeds says.

One statistic for a quantity everywhere: the mean for accuracies and errors, the median for seconds.
"""

from __future__ import annotations

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
    held = list(values)
    if not held:
        return None
    return Spread(statistics.fmean(held), min(held), max(held), len(held), statistics.median(held))


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


def by_method(records: Iterable[Record]) -> dict[str, dict[int, Record]]:
    """method -> seed -> record, of the cells that ran to their end."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        if record["accuracy"] is not None:
            found.setdefault(record["method"], {})[record["seed"]] = record
    return found


def failures(records: Iterable[Record]) -> dict[str, str]:
    """method -> why it has no result, for methods that failed on some seed."""
    return {r["method"]: r.get("reason") or "no reason recorded" for r in records if r["accuracy"] is None}


def method_order(records: Iterable[Record]) -> tuple[str, ...]:
    """feta first, then feta with options, then the paper's methods in its order, then the others as they come."""
    names = dict.fromkeys(record["method"] for record in records)
    known = ("feta", *paper.METHODS)

    def place(name: str) -> int:
        if name.startswith("feta:"):
            return 1
        return 2 * known.index(name) if name in known else 2 * len(known)

    return tuple(sorted(names, key=place))


def relative_error(record: Record) -> float | None:
    """The mean over the layers, however many were recorded; None where none was."""
    value = record.get("relative_error")
    if isinstance(value, list | tuple):
        known = [one for one in value if one is not None]
        return statistics.fmean(known) if known else None
    return value
