"""What a page is made of besides figures: text, headline numbers, tables, sections, verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feta.errors import ConfigError
from feta_lab.claims.finding import Finding
from feta_lab.page.figure import Figure
from feta_lab.results.forms import is_number


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
                raise ConfigError(f"Table '{self.caption}', row {number}: must have {width} cells, got {len(row)}")

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers and gaps alone."""
        columns = ([row[x] for row in self.rows if row[x] is not None] for x in range(len(self.columns)))
        return [bool(known) and all(isinstance(cell, Shown | int | float) for cell in known) for known in columns]

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The words of every cell, row by row; the plain numbers of a column are written alike."""
        return list(zip(*map(_texts, zip(*self.rows, strict=True)), strict=True))


def sort_key(cell: Cell) -> str:
    """What a browser sorts the cell by: the full number, the words, or nothing (which sorts last)."""
    value = cell.key if isinstance(cell, Shown) else cell
    return value if isinstance(value, str) else repr(value) if is_number(value) else ""


def _texts(column: Sequence[Cell]) -> list[str]:
    texts = [cell.text if isinstance(cell, Shown) else cell for cell in column]
    written = iter(show_column([text for text in texts if isinstance(text, int | float) and is_number(text)]))
    return [next(written) if is_number(text) else show(text) for text in texts]


def show(value: str | float | None) -> str:
    """Write one value with about four digits: show(1234567) is "1,234,567", show(None) is a dash."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or not is_number(value):
        return "–"
    if isinstance(value, int) or 1e3 <= abs(value) < 1e15:
        return minus(f"{value:,.0f}")
    return minus(f"{value:.4g}")


def show_column(values: Sequence[float]) -> list[str]:
    """Write the numbers of one column, with the same decimals where they are of similar size."""
    sizes = [abs(value) for value in values if value]
    alike = sizes and max(sizes) <= 1000 * min(sizes) and 1e-3 <= max(sizes) < 1e4
    if not alike or all(isinstance(value, int) for value in values):
        return [show(value) for value in values]
    room = max(0, 3 - math.floor(math.log10(max(sizes))))
    decimals = max(_decimals(round(value, room), room) for value in values)
    return [minus(f"{value:,.{decimals}f}") for value in values]


def minus(text: str) -> str:
    """Replace hyphens by true minus signs."""
    return text.replace("-", "−")


def _decimals(value: float, most: int) -> int:
    """The fewest decimals that write the value exactly, up to rounding errors."""
    return next((d for d in range(most) if math.isclose(round(value, d), value, rel_tol=1e-6)), most)


@dataclass(frozen=True)
class Facts:
    """The headline numbers: (label, value) pairs in a row."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Text:
    """Plain paragraphs: Text("First.", "Second.")."""

    paragraphs: tuple[str, ...]

    def __init__(self, *paragraphs: str) -> None:
        object.__setattr__(self, "paragraphs", paragraphs)


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: "tuple[Block, ...]"


@dataclass(frozen=True)
class Fold:
    """Blocks behind one line that opens them."""

    summary: str
    blocks: "tuple[Block, ...]"


@dataclass(frozen=True)
class Verdicts:
    """Claims with their verdicts, one below the other, each with its numbers, its reason and its table."""

    items: tuple[Finding, ...]


Block = Table | Figure | Facts | Text | Section | Fold | Verdicts
