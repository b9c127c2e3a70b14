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


def gains(records: Sequence[Record]) -> str:
    """How far feta's better choice is ahead of the best other one after the refit, by network."""
    refitted = [one for one in records if "failure" not in one and one["after"] == "refit"]
    shares, told = sorted({one["share"] for one in refitted}), []
    for (net,), mine in groups(refitted, "net").items():
        ahead = [lead([one for one in mine if one["share"] == share]) for share in shares]
        told.append(f"{net} {' / '.join(f'{points:+.1f}' for points in ahead)}")
    asked = " / ".join(f"−{100 * share:g}" for share in shares)
    return (
        f"after the refit, at {asked} %, the better of feta's choices is ahead of the best other one by points: "
        f"{', '.join(told)}"
    )


def lead(records: Sequence[Record]) -> float:
    scores = {choice: summary(same, "accuracy") or 0.0 for (choice,), same in groups(records, "choice").items()}
    ours, others = (
        max(score for name, score in scores.items() if name.startswith("feta") == mine) for mine in (True, False)
    )
    return round(ours - others, 1) + 0.0  # not -0.0


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
