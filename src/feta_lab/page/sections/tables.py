"""Summaries over the seeds, and the two kinds of tables that show them.

A row is a mapping of names to plain values and to `Spread`s. Names that end in "seconds" are summed up by the
median, all others by the mean.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feta_lab.page.blocks import Cell, Shown, Table, minus
from feta_lab.page.figure import Point
from feta_lab.records import groups as records_by
from feta_lab.results import Record
from feta_lab.results.summaries import Spread, by_setting, duration, method_order, spread

Row = Mapping[str, Any]
FAILED = Shown("failed", None)
CAPTION = "Over the seeds: median of times, mean of everything else (lowest–highest)"


@dataclass(frozen=True)
class Entry:
    """One cell of a pivot table; of the entries with the same `contest` the one with the least `rank` stands out."""

    down: tuple[Cell, ...]
    across: str
    cell: Cell
    contest: Hashable = None
    rank: float | None = None


def groups(records: Sequence[Record], *fields: str) -> Iterator[tuple[str, tuple[Any, ...], list[Record]]]:
    """The records with the same network and the same values of `fields`, as (network, values, records)."""
    for net, mine in by_setting(records).items():
        methods = method_order(mine) if "method" in fields else ()
        found = records_by(mine, *fields)
        for key in sorted(found, key=lambda key: [methods.index(v) if v in methods else v for v in key]):
            yield net, key, found[key]


def scores(records: Sequence[Record]) -> Row:
    """The spreads of accuracy and of points lost, over the cells that ran to their end."""
    ran = [r for r in records if r["accuracy"] is not None]
    lost = spread(r["dense_accuracy"] - r["accuracy"] for r in ran)
    return {"accuracy": spread(r["accuracy"] for r in ran), "lost": lost}


def pivot(
    name: str,
    caption: str,
    heads: tuple[str, ...],
    entries: Sequence[Entry],
    order: Sequence[str] = (),
    numbers: tuple[Row, ...] = (),
) -> Table:
    """A table with a line per `down` and a column per `across`, in the order of the entries.

    name, caption, numbers: of the table.
    heads: the names of the columns in `down`.
    order: the columns that come first.
    """
    columns = list(dict.fromkeys([*order, *(entry.across for entry in entries)]))
    lines: dict[tuple[Cell, ...], list[Cell]] = {}
    winners: dict[Hashable, tuple[float, tuple[int, int]]] = {}
    for entry in entries:
        line = lines.setdefault(entry.down, [None] * len(columns))
        line[columns.index(entry.across)] = entry.cell
        if entry.rank is not None:
            place = (list(lines).index(entry.down), len(heads) + columns.index(entry.across))
            winners[entry.contest] = min(winners.get(entry.contest, (entry.rank, place)), (entry.rank, place))
    rows = tuple((*down, *line) for down, line in lines.items())
    strong = frozenset(place for _, place in winners.values())
    return Table(caption, (*heads, *columns), rows, strong, name, numbers)


def full_table(name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> Table:
    """All rows with their ranges; `columns` are (words above the column, name in the rows)."""
    lines = tuple(tuple(cell(key, row[key]) for key in columns.values()) for row in rows)
    return Table(CAPTION, tuple(columns), lines, name=name, numbers=tuple(map(numbers, rows)))


def cell(name: str, value: Any) -> Cell:
    """94.41 (93.82–94.90), or 26 s (24 s–29 s) for seconds; one seed has no range. Plain values stay."""
    if not isinstance(value, Spread):
        return value  # type: ignore[no-any-return]
    show = duration if name.endswith("seconds") else lambda number: minus(f"{number:.2f}")
    ends = f" ({show(value.low)}–{show(value.high)})" if value.n > 1 else ""
    return Shown(show(middle(name, value)) + ends, middle(name, value))


def numbers(row: Row) -> dict[str, Any]:
    """A row for programs: a spread becomes NAME, NAME_low and NAME_high."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        plain[name] = value.key if isinstance(value, Shown) else value
        if isinstance(value, Spread):
            plain |= {name: middle(name, value), f"{name}_low": value.low, f"{name}_high": value.high}
    return plain


def middle(name: str, value: Spread) -> float:
    """The one statistic of a quantity: the median of seconds, the mean of everything else."""
    return value.median if name.endswith("seconds") else value.mean


def mean_cell(value: Spread | None, digits: int = 2) -> Shown | None:
    """The mean alone, for a table that leaves the range to another one."""
    return None if value is None else Shown(minus(f"{value.mean:.{digits}f}"), value.mean)


def point(x: float, value: Spread | None, hollow: bool = False) -> Point:
    """The mean at x with its range; a gap where there is no value."""
    return Point(x, None) if value is None else Point(x, value.mean, value.low, value.high, hollow)
