"""The tables of docs/structured.md, from the records of structured.py; see docs/figures.py."""

import statistics
from collections.abc import Sequence

from origin import origin

from feta_lab.records import Record, groups, summary

NAMES = {
    "magnitude-uniform": "magnitude, same share",
    "magnitude-global": "magnitude, ranked over all",
    "taylor-uniform": "Taylor, same share",
    "taylor-global": "Taylor, ranked over all",
    "feta-uniform": "feta, same share",
    "feta-error": "feta, by error",
}
AFTERS = {"cut": "cut", "refit": "+ refit", "fit": "+ fit"}


def tables(records: Sequence[Record]) -> str:
    """A table for each network: a row for each choice of channels, test accuracy after each step."""
    good = [record for record in records if "failure" not in record]
    return "\n\n".join([*(table(net, mine) for (net,), mine in groups(good, "net").items()), origin(good)])


def table(net: str, records: list[Record]) -> str:
    cells = groups(records, "share", "after", "choice")
    columns = sorted(groups(records, "share", "after"), key=lambda column: (column[0], list(AFTERS).index(column[1])))
    heads = [f"−{100 * share:g} %, {AFTERS[after]}" for share, after in columns]
    counts = sorted({len(groups(mine, "seed")) for mine in cells.values()})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    dense = statistics.mean(mine[0]["dense_accuracy"] for mine in groups(records, "seed").values())
    told = f"{net}, {records[0]['data']}: {dense:.2f} % before" + (
        f", mean of {seeds} networks" if counts[-1] > 1 else ""
    )
    lines = [f"**{told}**", "", f"| which go | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(columns)}"]
    for choice, name in NAMES.items():
        found = [summary(cells.get((*column, choice), []), "accuracy") for column in columns]
        lines.append(f"| {name} | {' | '.join('–' if one is None else f'{one:.2f}' for one in found)} |")
    return "\n".join(lines)
