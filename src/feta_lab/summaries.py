"""Records by network, method and seed, and what a mean over the seeds leaves out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feta_lab import paper
from feta_lab.results import Record


@dataclass(frozen=True)
class Spread:
    """Mean, lowest and highest of a few values."""

    mean: float
    low: float
    high: float
    n: int


def spread(values: Iterable[float]) -> Spread | None:
    """None where there is no value at all."""
    held = list(values)
    return Spread(statistics.fmean(held), min(held), max(held), len(held)) if held else None


def at_sparsity(records: Iterable[Record], sparsity: float) -> list[Record]:
    return [record for record in records if abs(record["sparsity"] - sparsity) < 1e-9]


def by_setting(records: Sequence[Record]) -> dict[str, list[Record]]:
    """By network, the paper's first; one that was run on several data sets or devices has a label for each."""
    variants: dict[str, list[tuple[str, str]]] = {}
    for record in records:
        place = (str(record.get("data_name", "")), str(record.get("device", "")))
        if place not in variants.setdefault(record["net"], []):
            variants[record["net"]].append(place)
    order = [net for net in paper.NETS if net in variants] + [n for n in variants if n not in paper.NETS]
    groups: dict[str, list[Record]] = {}
    for net in order:
        for data, device in variants[net]:
            label = net if len(variants[net]) == 1 else f"{net} ({data}, {device})"
            groups[label] = [
                record
                for record in records
                if record["net"] == net
                and (str(record.get("data_name", "")), str(record.get("device", ""))) == (data, device)
            ]
    return groups


def by_method(records: Iterable[Record]) -> dict[str, dict[int, Record]]:
    """method -> seed -> record, of the cells that were run to their end."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        if record["accuracy"] is not None:
            found.setdefault(record["method"], {})[record["seed"]] = record
    return found


def failures(records: Iterable[Record]) -> dict[str, str]:
    """method -> why it has no result, for methods that failed on some seed."""
    return {r["method"]: r.get("reason") or "no reason recorded" for r in records if r["accuracy"] is None}


def method_order(records: Iterable[Record]) -> tuple[str, ...]:
    """feta first, then the paper's methods in its order, then the others as they come."""
    names = list(dict.fromkeys(record["method"] for record in records))
    known = ("feta", *paper.METHODS)

    def place(name: str) -> tuple[int, int]:
        variant = name.startswith("feta:")
        return (0 if variant else known.index(name) + 1 if name in known else 99, names.index(name))

    ordered = sorted(names, key=place)
    return tuple(sorted(ordered, key=lambda name: name != "feta"))


def relative_error(record: Record) -> float | None:
    """The mean over the layers, however many were recorded."""
    value = record.get("relative_error")
    if isinstance(value, list | tuple):
        known = [one for one in value if one is not None]
        return statistics.fmean(known) if known else None
    return value
