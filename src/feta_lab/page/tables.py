"""Tables and bars as rows of text: numbers written alike, sort keys beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from feta_lab.page.blocks import BarChart, is_number
from feta_lab.page.cells import Align, Cell, Shown, Table
from feta_lab.page.numbers import MISSING, show, show_column
from feta_lab.page.palette import Look

# "97.2", "97.2 ± 0.3 %", "1,234 kB": a number, perhaps its spread, perhaps a unit.
NUMBER = re.compile(r"([-+−]?\d[\d,]*\.?\d*)(?:\s*±\s*[\d.,]+)?\s*(%|×|[A-Za-zµ]{0,4})")


@dataclass(frozen=True)
class DrawnCell:
    """A cell's text and its sort key; an empty key sorts last."""

    text: str
    key: str
    strong: bool = False


@dataclass(frozen=True)
class DrawnTable:
    """A table ready to be written."""

    caption: str
    heads: tuple[tuple[str, Align, bool], ...]
    rows: tuple[tuple[DrawnCell, ...], ...]
    groups: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class DrawnBar:
    """One bar in percent of the full width, and its words."""

    label: str
    value: str
    note: str
    start: float
    length: float
    look: Look | None


def draw_table(table: Table) -> DrawnTable:
    """Format column by column: a column is numeric when all that it holds are numbers of one unit."""
    columns = [[row[index] for row in table.rows] for index in range(len(table.columns))]
    keys = [_numeric_keys(column) for column in columns]
    aligns = table.align or tuple("right" if key is not None else "left" for key in keys)
    heads = tuple(
        (name, align, key is not None) for name, align, key in zip(table.columns, aligns, keys, strict=True)
    )
    cells = [_cells(column, key) for column, key in zip(columns, keys, strict=True)]
    rows = tuple(
        tuple(replace(cell, strong=(y, x) in table.strong) for x, cell in enumerate(row))
        for y, row in enumerate(zip(*cells, strict=True))
    )
    return DrawnTable(table.caption, heads, rows, table.groups)


def cell_texts(column: Sequence[Cell]) -> list[str]:
    """The words of a column: its plain numbers written alike."""
    numbers = [cell for cell in column if isinstance(cell, int | float) and is_number(cell)]
    written = iter(show_column(numbers))
    return [_words(cell, written) for cell in column]


def _words(cell: Cell, written: Iterator[str]) -> str:
    if isinstance(cell, Shown):
        return cell.text
    return next(written) if is_number(cell) else show(cell)


def _cells(column: Sequence[Cell], keys: list[str] | None) -> list[DrawnCell]:
    texts = cell_texts(column)
    if keys is None:
        keys = ["" if text == MISSING else text for text in texts]
    return [DrawnCell(text, key) for text, key in zip(texts, keys, strict=True)]


def _numeric_keys(column: Sequence[Cell]) -> list[str] | None:
    """Sort keys of a numeric column; None for a column of words."""
    keys, units = [], set()
    for cell in column:
        if isinstance(cell, bool):
            return None
        if isinstance(cell, Shown):
            keys.append("" if cell.key is None else repr(cell.key))
        elif isinstance(cell, str) and cell not in ("", MISSING):
            match = NUMBER.fullmatch(cell.strip())
            if match is None:
                return None
            keys.append(match[1].replace(",", "").replace("−", "-"))
            units.add(match[2])
        else:
            keys.append(repr(cell) if is_number(cell) else "")
    # "900 kB" and "1.2 MB" cannot be ordered by their digits.
    return keys if len(units) <= 1 and any(keys) else None


def draw_bars(chart: BarChart, looks: Mapping[str, Look]) -> tuple[DrawnBar, ...]:
    """Bars from a common zero, which stands at the left unless a value is negative."""
    values = [value for _, value, _ in chart.bars if value is not None and is_number(value)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    low, high = min(low, 0.0), max(high, 0.0)
    scale = 100 / ((high - low) or 1.0)

    def bar(label: str, value: float | None, note: str) -> DrawnBar:
        size = value if value is not None and is_number(value) else 0.0
        start = (min(size, 0.0) - low) * scale
        return DrawnBar(label, show(value), note, round(start, 2), round(abs(size) * scale, 2), looks.get(label))

    return tuple(bar(*entry) for entry in chart.bars)
