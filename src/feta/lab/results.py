"""A results folder: its sub-folders' records, by experiment.

    results/table1/records.jsonl   results/fig2/records.jsonl   results/fig3a ...   any other: a benchmark

A folder may have a suffix (table1-gpu). A cell that was run again counts once: its last record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from feta.errors import FileError
from feta.lab.experiments import latest
from feta.lab.records import read

Record = Mapping[str, Any]
Kind = Literal["table1", "fig2", "fig3a", "fig3b", "fig3c", "bench"]

WHERE = ("net", "data_name", "device")
KEYS: dict[Kind, tuple[str, ...]] = {
    "table1": (*WHERE, "method", "seed", "sparsity"),
    "fig2": (*WHERE, "method", "seed", "sparsity", "refine"),
    "fig3a": (*WHERE, "seed", "layer", "sparsity"),
    "fig3b": (*WHERE, "seed", "layer", "sparsity"),
    "fig3c": ("k", "network", "layer", "sparsity"),
    "bench": (*WHERE, "method", "seed", "sparsity", "compensate", "samples"),
}
# What a record must have to be of a kind; the rest may be missing where a cell failed.
NEEDED: dict[Kind, tuple[str, ...]] = {
    "table1": ("net", "method", "seed", "sparsity", "accuracy"),
    "fig2": ("net", "method", "seed", "sparsity", "refine", "accuracy"),
    "fig3a": ("net", "layer", "depth", "layers", "sparsity", "accuracy"),
    "fig3b": ("net", "layer", "depth", "layers", "sparsity", "accuracy"),
    "fig3c": ("k", "network", "sparsity", "accuracy"),
    "bench": ("net", "method", "seed", "sparsity", "compensate", "accuracy", "floor_seconds"),
}


@dataclass(frozen=True)
class Source:
    """The records of one folder."""

    name: str
    kind: Kind
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Results:
    """Everything that was found."""

    sources: tuple[Source, ...]

    def of(self, *kinds: Kind) -> list[Record]:
        return [record for source in self.sources if source.kind in kinds for record in source.records]

    def names(self, *kinds: Kind) -> str:
        """The folders of these kinds, for a page to name."""
        return ", ".join(source.name for source in self.sources if source.kind in kinds)


def gather(folder: Path) -> Results:
    """Read the records of a folder and of its sub-folders; others than experiments and benchmarks are passed by."""
    if not folder.is_dir():
        raise FileError(
            f"results must be a folder, got {folder}; make one with 'feta reproduce' or 'feta bench'"
        )
    places = [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]
    found = [_source(place) for place in places if (place / "records.jsonl").is_file()]
    sources = tuple(source for source in found if source is not None)
    if not sources:
        raise FileError(
            f"{folder} must hold records (table1/records.jsonl, fig2/records.jsonl ...), got none; "
            "make some with 'feta reproduce' or 'feta bench'"
        )
    return Results(sources)


def _source(place: Path) -> Source | None:
    name = place.resolve().name
    records = read(place / "records.jsonl")
    kind = _kind(name, records)
    if kind is None or not records:
        return None
    for number, record in enumerate(records, start=1):
        missing = [field for field in NEEDED[kind] if field not in record]
        if missing:
            where = f"{place / 'records.jsonl'}, record {number}"
            raise FileError(f"{where}: must have {', '.join(missing)} to be a record of {kind}")
    return Source(name, kind, tuple(latest(records, KEYS[kind])))


def _kind(name: str, records: list[dict[str, Any]]) -> Kind | None:
    for kind in KEYS:
        if name == kind or name.startswith(f"{kind}-"):
            return kind
    benchmark = all(all(field in record for field in NEEDED["bench"]) for record in records)
    return "bench" if benchmark else None


def unretrained(
    results: Results, wanted: Collection[str] | None = None, timed: bool = False
) -> tuple[list[Record], str]:
    """Cells pruned and neither refined nor retrained, and where they come from.

    Those of Figure 2. For a network that it lacks, those of one benchmark without compensation, so that no network
    counts twice: the one that ran most of the wanted methods on it (by default: most methods).
    """
    chosen = [record for record in results.of("fig2") if not record["refine"]]
    have = {record["net"] for record in chosen}
    names = [results.names("fig2")] if chosen else []
    offers: dict[str, list[tuple[tuple[int, int], str, list[Record]]]] = {}
    for source in results.sources:
        if source.kind != "bench":
            continue
        plain = [_as_pruned(record) for record in source.records if not record["compensate"]]
        for net, device in dict.fromkeys((r["net"], r.get("device")) for r in plain):
            mine = [r for r in plain if (r["net"], r.get("device")) == (net, device)]
            known = {r["method"] for r in mine if r["timed"] or not timed}
            rank = (len(known if wanted is None else known & set(wanted)), len(mine))
            offers.setdefault(net, []).append((rank, source.name, mine))
    for net, choices in offers.items():
        if net not in have:
            _, name, mine = max(choices, key=lambda choice: choice[0])
            chosen += mine
            names.append(name)
    return chosen, ", ".join(dict.fromkeys(names))


def _as_pruned(record: Record) -> Record:
    """A benchmark's cell in the words of Figure 2."""
    extra = {"refine": False, "prune_seconds": record.get("seconds"), "refine_seconds": 0.0}
    return {**record, **extra, "timed": record.get("timed", True)}
