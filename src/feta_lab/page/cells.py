"""Tables as data: cells, their words, and cells that stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feta.errors import ConfigError
from feta_lab.page.numbers import is_number, show, show_column


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
    """Rows of cells; columns of numbers stand right, others left.

    strong: cells that stand out, as (row, column).
    name: the table is written to files of this name; a table without a name stays on the page.
    numbers: what the CSV file holds instead of the cells' texts, one mapping per row.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    strong: frozenset[tuple[int, int]] = frozenset()
    name: str = ""
    numbers: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        width = len(self.columns)
        for number, row in enumerate(self.rows):
            if len(row) != width:
                where = f"Table '{self.caption}', row {number}"
                raise ConfigError(f"{where}: must have {width} cells, got {len(row)}")

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers and gaps alone."""
        columns = ([cell for row in self.rows if (cell := row[x]) is not None] for x in range(len(self.columns)))
        return [bool(known) and all(isinstance(cell, Shown | int | float) for cell in known) for known in columns]

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The words of every cell, row by row; the plain numbers of a column are written alike."""
        return list(zip(*(_texts(column) for column in zip(*self.rows, strict=True)), strict=True))


def sort_key(cell: Cell) -> str:
    """What a browser sorts the cell by: the full number, the words, or nothing (which sorts last)."""
    value = cell.key if isinstance(cell, Shown) else cell
    return value if isinstance(value, str) else repr(value) if is_number(value) else ""


def _texts(column: Sequence[Cell]) -> list[str]:
    plain = [cell for cell in column if isinstance(cell, int | float) and is_number(cell)]
    written = iter(show_column(plain))
    texts = (cell.text if isinstance(cell, Shown) else cell for cell in column)
    return [next(written) if is_number(text) else show(text) for text in texts]
