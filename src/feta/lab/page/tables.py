"""Tables and bars as rows of text: numbers written alike, sort keys beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feta.lab.page.blocks import Align, BarChart, Cell, Table, is_number
from feta.lab.page.numbers import MISSING, show, show_column
from feta.lab.page.palette import Look

# "97.2", "97.2 ± 0.3 %", "1,234 kB": a number, perhaps its spread, perhaps a unit.
NUMBER = re.compile(r"([-+−]?\d[\d,]*\.?\d*)(?:\s*±\s*[\d.,]+)?\s*(%|×|[A-Za-zµ]{0,4})")


@dataclass(frozen=True)
class DrawnCell:
    """A cell's text and its sort key; an empty key sorts last."""

    text: str
    key: str


@dataclass(frozen=True)
class DrawnTable:
    """A table ready to be written."""

    caption: str
    heads: tuple[tuple[str, Align, bool], ...]
    rows: tuple[tuple[DrawnCell, ...], ...]


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
    return DrawnTable(table.caption, heads, tuple(zip(*cells, strict=True)))


def _cells(column: Sequence[Cell], keys: list[str] | None) -> list[DrawnCell]:
    numbers = [cell for cell in column if not isinstance(cell, str) and is_number(cell) and cell is not None]
    written = iter(show_column(numbers))
    texts = [next(written) if is_number(cell) else show(cell) for cell in column]
    if keys is None:
        keys = ["" if text == MISSING else text for text in texts]
    return [DrawnCell(text, key) for text, key in zip(texts, keys, strict=True)]


def _numeric_keys(column: Sequence[Cell]) -> list[str] | None:
    """Sort keys of a numeric column; None for a column of words."""
    keys, units = [], set()
    for cell in column:
        if isinstance(cell, bool):
            return None
        if isinstance(cell, str) and cell not in ("", MISSING):
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
        return DrawnBar(
            label, show(value), note, round(start, 2), round(abs(size) * scale, 2), looks.get(label)
        )

    return tuple(bar(*entry) for entry in chart.bars)
