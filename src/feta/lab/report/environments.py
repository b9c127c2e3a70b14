"""Where the records were made: a row per folder, machine and data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feta.lab import page
from feta.lab.results import Results

FIELDS = ("processor", "cores", "threads", "gpu", "system", "python", "torch", "numpy", "feta", "commit")


def section(results: Results) -> page.Section:
    counts: dict[tuple[str, ...], int] = {}
    for source in results.sources:
        for record in source.records:
            environment: Mapping[str, Any] = record.get("environment") or {}
            where = (str(record.get("data", "")), str(record.get("device", "")))
            key = (source.name, *where, *(str(environment.get(field, "")) for field in FIELDS))
            counts[key] = counts.get(key, 0) + 1
    rows: tuple[tuple[page.Cell, ...], ...] = tuple(
        (key[0], count, *key[1:]) for key, count in counts.items()
    )
    columns = ("records of", "how many", "data", "device", *FIELDS)
    return page.Section("Environments", (page.Table("", columns, rows),))
