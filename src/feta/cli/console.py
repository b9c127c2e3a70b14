"""Talking to people and machines: tables and bars on a terminal, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


def out() -> Console:
    return _console(stderr=False)


def err() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    # No markup: paths and names may hold brackets. Soft wrap: a line that is piped stays one line.
    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Exactly one JSON object on stdout."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for index, column in enumerate(columns):
        numbers = index > 0 and all(_is_number(str(row[index])) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    out().print(table)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Bars on stderr; on a pipe nothing."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    with _progress(*columns) as bar:
        yield bar


@contextmanager
def download_bar() -> Iterator[Any]:
    """A callback (file, bytes so far, bytes in all) that draws bars."""
    with _progress(TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()) as bar:
        tasks: dict[str, Any] = {}

        def advance(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        yield advance


def _progress(*columns: ProgressColumn) -> Progress:
    console = err()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def resolve_device(name: str | None) -> str:
    """The device to use: the one asked for, if it is there, else the GPU if there is one, else the CPU."""
    from feta.calibration import model

    return model.resolve_device(name, "--device")


def size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.1f} kB"


def records_path(given: Path | None, output: Path | None) -> Path:
    """Where a run's record goes: as asked, else beside the output, else into the current folder."""
    if given is not None:
        return given
    return (output.parent if output is not None else Path()) / "feta-records.jsonl"


def _is_number(cell: str) -> bool:
    """Digits with signs, units and separators; prose is read from the left."""
    return not any(character.isalpha() for character in cell.replace("kB", "").replace("MB", "").replace("None", ""))
