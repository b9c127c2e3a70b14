"""Output for people and programs: tables and progress bars on a terminal, one JSON object for programs."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from feta.errors import printable

PIPED = 1000  # columns of a table that no terminal cuts: a name stays whole for grep
WORD = 6  # letters that a name has at least in a line of a table


class Plain(Console):
    """Prints what files say about themselves, which must not steer the terminal."""

    def print(self, *values: Any, **how: Any) -> None:
        super().print(*(printable(value, lines=True) if isinstance(value, str) else value for value in values), **how)

    def on_broken_pipe(self) -> None:
        """End as other programs do whose reader has gone away: with the code of SIGPIPE, where rich has 1."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(141) from None


def out(*, stderr: bool = False) -> Console:
    # No markup: paths and names may hold brackets. Soft wrap: a line that is piped stays one line.
    return Plain(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def err() -> Console:
    return out(stderr=True)


def print_json(value: Mapping[str, Any], **places: Path | None) -> None:
    """Exactly one JSON object on stdout. places: what was written where, by the option's name; null: nothing was."""
    named = {name: None if place is None else str(place) for name, place in places.items()}
    sys.stdout.write(json.dumps({**value, **named}, allow_nan=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout. Columns of numbers, with or without a unit, are aligned on the right."""
    table = Table(title=printable(title), title_justify="left", title_style="bold", header_style="bold")
    for index, column in enumerate(columns):
        cells = re.sub("kB|MB|None", "", " ".join(str(row[index]) for row in rows))
        numbers = index > 0 and not any(map(str.isalpha, cells))
        # Where a table is too wide, long names are folded and numbers stay whole.
        width = None if numbers else min(WORD, max((len(str(row[index])) for row in rows), default=0))
        justify: Any = "right" if numbers else "left"
        table.add_column(column, justify=justify, no_wrap=numbers, overflow="fold", min_width=width)
    for row in rows:
        table.add_row(*(printable(str(cell)) for cell in row))
    console = out()
    if not console.is_terminal:
        console.width = PIPED
    console.print(table)


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Any]:
    """A bar on stderr with a note, on a pipe a line now and then; gives a function that updates its fields."""
    if not err().is_terminal:
        from feta.progress import Progress

        with Progress(title, total=total) as lines:
            yield lines.update
        return
    what, note = (TextColumn(field, markup=False) for field in ("{task.description}", "{task.fields[note]}"))
    with _progress(what, BarColumn(), note, TimeElapsedColumn()) as bar:
        yield partial(bar.update, bar.add_task(title, total=total, note=""))


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
    """The device that --device names or, without a name, the GPU if there is one. Raises ConfigError."""
    from feta.calibration import model

    return model.resolve_device(name, "--device")


def size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.1f} kB"
