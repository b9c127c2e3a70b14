"""Tables as data: cells, columns that belong together, cells that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from feta.errors import ConfigError

Align = Literal["left", "right", "center"]


@dataclass(frozen=True)
class Shown:
    """A number in words of its own, "94.4 (93.8–94.9)" or "3 min", and the number it is sorted by.

    Words in a column of numbers ("failed") have no key: they sort last.
    """

    text: str
    key: float | None


Cell = str | float | int | None | Shown


@dataclass(frozen=True)
class Table:
    """Rows of cells; a column of numbers stands right unless `align` says otherwise for every column.

    `groups` puts words above neighbouring columns, (words, how many), over all columns in order; `strong` names
    cells that stand out, as (row, column).
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    align: tuple[Align, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    strong: frozenset[tuple[int, int]] = frozenset()

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
