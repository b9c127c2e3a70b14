"""Tables as data: cells, columns that belong together, cells that stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from feta.errors import ConfigError
from feta_lab.page.numbers import is_number, show, show_column

Align = Literal["left", "right"]


@dataclass(frozen=True)
class Shown:
    """A number with a text of its own, "94.4 (93.8–94.9)" or "3 min", and the number it is sorted by.

    Words in a column of numbers ("failed") have the key None and sort last.
    """

    text: str
    key: float | None


Cell = str | float | int | None | Shown


@dataclass(frozen=True)
class Table:
    """Rows of cells.

    align: one entry per column; by default columns of numbers stand right and others left.
    groups: (words, how many columns) above neighbouring columns, over all columns in order.
    strong: cells that stand out, as (row, column).
    name: the table is written to files of this name; a table without a name stays on the page.
    numbers: what the CSV file holds instead of the cells' texts, one mapping per row.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    align: tuple[Align, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    strong: frozenset[tuple[int, int]] = frozenset()
    name: str = ""
    numbers: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        width = len(self.columns)
        for number, row in enumerate(self.rows):
            if len(row) != width:
                where = f"Table '{self.caption}', row {number}"
                raise ConfigError(f"{where}: must have {width} cells, got {len(row)}")
        if self.align and len(self.align) != width:
            raise ConfigError(f"Table.align must have {width} entries, got {len(self.align)}")
        spanned = sum(count for _, count in self.groups)
        if self.groups and spanned != width:
            raise ConfigError(f"Table.groups must span {width} columns, got {spanned}")

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers and nothing else."""
        return [_is_numeric([row[index] for row in self.rows]) for index in range(len(self.columns))]

    @property
    def aligns(self) -> tuple[Align, ...]:
        """The alignment of every column."""
        return self.align or tuple("right" if numeric else "left" for numeric in self.numeric)

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The words of every cell, row by row; the plain numbers of a column are written alike."""
        columns = [_texts([row[index] for row in self.rows]) for index in range(len(self.columns))]
        return list(zip(*columns, strict=True))


def sort_key(cell: Cell) -> str:
    """What a browser sorts the cell by: the full number, the words, or nothing (which sorts last)."""
    value = cell.key if isinstance(cell, Shown) else cell
    return value if isinstance(value, str) else repr(value) if is_number(value) else ""


def _is_numeric(column: Sequence[Cell]) -> bool:
    known = [cell for cell in column if cell is not None]
    return bool(known) and all(isinstance(cell, Shown | float) or is_number(cell) for cell in known)


def _texts(column: Sequence[Cell]) -> list[str]:
    written = iter(
        show_column([cell for cell in column if isinstance(cell, int | float) and is_number(cell)])
    )
    texts = (
        cell.text if isinstance(cell, Shown) else next(written) if is_number(cell) else show(cell)
        for cell in column
    )
    return list(texts)
