"""Records summed up over the seeds, as text for tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

NONE = "–"


def groups(
    records: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[tuple[tuple[Any, ...], list[Mapping[str, Any]]]]:
    """Records with the same values under `names`, in order of appearance."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in names), []).append(record)
    return list(found.items())


def accuracy(records: Sequence[Mapping[str, Any]], name: str) -> str:
    values = _values(records, name)
    return f"{statistics.mean(values):.2f}" if values else NONE


def seconds(records: Sequence[Mapping[str, Any]], name: str) -> str:
    values = _values(records, name)
    return f"{statistics.median(values):.2f}" if values else NONE


def failed(records: Sequence[Mapping[str, Any]], columns: int) -> tuple[str, ...]:
    """The cells of a row that has nothing to say but why."""
    return (*(NONE for _ in range(columns - 1)), records[0]["failure"])


def _values(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records if record.get(name) is not None]
