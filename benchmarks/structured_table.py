"""The table of docs/structured.md from results/structured/records.jsonl: python benchmarks/structured_table.py"""

from __future__ import annotations

import sys
from pathlib import Path

from feta_lab.records import Record, groups, read, summary

NAMES = {
    "magnitude-uniform": "magnitude, same share",
    "magnitude-global": "magnitude, ranked over all",
    "taylor-uniform": "Taylor, same share",
    "taylor-global": "Taylor, ranked over all",
    "feta-uniform": "feta, same share",
    "feta-error": "feta, by error",
}
AFTERS = {"cut": "cut", "refit": "+ refit", "fit": "+ refit + fit"}


def table(records: list[Record]) -> str:
    """A row for each choice of channels, a column for each network, share and what comes after: test accuracy."""
    good = [record for record in records if "failure" not in record]
    columns = sorted(groups(good, "net", "share", "after"), key=lambda c: (c[0], c[1], list(AFTERS).index(c[2])))
    heads = [f"{net} −{100 * share:g} % {AFTERS[after]}" for net, share, after in columns]
    lines = [f"| which go | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(columns)}"]
    for choice, name in NAMES.items():
        cells = []
        for column in columns:
            mine = groups(good, "net", "share", "after", "choice").get((*column, choice), [])
            found = summary(mine, "accuracy")
            cells.append("–" if found is None else f"{found:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1] if len(sys.argv) > 1 else "results/structured/records.jsonl"))))
