"""Where the records were made: a row per folder, machine and data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feta_lab import page
from feta_lab.results import Record, Results

FIELDS = ("processor", "cores", "threads", "gpu", "system", "python", "torch", "numpy", "feta", "commit")


def machines(records: Sequence[Record]) -> str:
    """Which networks were timed on what: "dense-mnist on AMD EPYC with 1 thread; conv-mnist on NVIDIA H200."."""
    nets: dict[str, list[str]] = {}
    for record in records:
        environment: Mapping[str, Any] = record.get("environment") or {}
        on_gpu = str(record.get("device", "")).startswith("cuda")
        threads = environment.get("threads")
        counted = f" with {threads} thread{'' if threads == '1' else 's'}" if threads else ""
        name = environment.get("gpu") if on_gpu else f"{environment.get('processor', 'a CPU')}{counted}"
        held = nets.setdefault(str(name or "a GPU"), [])
        if record["net"] not in held:
            held.append(record["net"])
    return "; ".join(f"{', '.join(held)} on {name}" for name, held in nets.items()) + "."


def section(results: Results) -> page.Section:
    counts: dict[tuple[str, ...], int] = {}
    for source in results.sources:
        for record in source.records:
            environment: Mapping[str, Any] = record.get("environment") or {}
            where = (str(record.get("data", "")), str(record.get("device", "")))
            key = (source.name, *where, *(str(environment.get(field, "")) for field in FIELDS))
            counts[key] = counts.get(key, 0) + 1
    rows: tuple[tuple[page.Cell, ...], ...] = tuple((key[0], count, *key[1:]) for key, count in counts.items())
    columns = ("records of", "how many", "data", "device", *FIELDS)
    return page.Section("Environments", (page.Table("", columns, rows),))
