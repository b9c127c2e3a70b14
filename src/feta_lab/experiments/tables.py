"""Records as a table for people: seconds are medians over the seeds, everything else is a mean."""

import statistics
from collections.abc import Sequence

from feta_lab.records import Record, groups

NONE = "–"


def summary(records: Sequence[Record], name: str) -> float | None:
    """A field over the records that have it: the median of seconds, the mean of anything else; None for none."""
    found = [record[name] for record in records if record.get(name) is not None]
    values: list[float] = [statistics.mean(one) if isinstance(one, list) else one for one in found]
    if not values:
        return None
    return statistics.median(values) if name.endswith("seconds") else statistics.mean(values)


def table(records: Sequence[Record], rows: Sequence[str], columns: Sequence[str], across: str = "") -> str:
    """A text table: a line per value of `rows`, a column per name of `columns`.

    With `across`, accuracies follow in a column per value of that field. A line whose cells all failed says how.
    """
    values = list(dict.fromkeys(record[across] for record in records)) if across else []
    lines = [[*rows, *columns, *map(str, values)]]
    for key, members in groups(records, *rows).items():
        ran = [record for record in members if record["accuracy"] is not None]
        found = [summary(ran or members, name) for name in columns]
        found += [summary([record for record in ran if record[across] == value], "accuracy") for value in values]
        cells = [NONE if one is None else f"{one:.4f}" if abs(one) < 1 else f"{one:.2f}" for one in found]
        lines.append([*map(str, key), *cells] if ran else [*map(str, key), *cells[:-1], members[0]["failure"]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
