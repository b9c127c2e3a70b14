"""The table and the picture of the methods alone, from benchmark records.

    python benchmarks/readme_results.py results/gpu/records.jsonl --picture docs/pictures/accuracy

Prints the table as Markdown; `--check docs/measurements.md` fails when the page holds another one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feta_lab.experiments.bench import table
from feta_lab.page.figure import Figure
from feta_lab.page.sections.bench import sparsity_charts
from feta_lab.records import latest, read
from feta_lab.results.summaries import method_order

SHARES = (0.9, 0.95, 0.98)
METHODS = ("threshold", "lobs", "sparsegpt", "alps", "feta")
PANELS = (
    "dense-mnist-wide",
    "dense-fashion-wide",
    "dense-cifar-wide",
    "conv-mnist",
    "conv-fashion",
    "conv-cifar",
)


def markdown(rows: list[dict], compensate: bool) -> str:
    head = ["network (dense accuracy)", *METHODS]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    mine = [row for row in rows if row["compensate"] == compensate and row["seeds"]]
    for net in dict.fromkeys(row["net"] for row in mine):
        cells = {(r["method"], r["sparsity"]): r for r in mine if r["net"] == net}
        shares = [share for share in SHARES if (METHODS[0], share) in cells]
        dense = next(iter(cells.values()))["dense"]
        best = {share: max(cells[m, share]["accuracy"] for m in METHODS) for share in shares}
        columns = []
        for method in METHODS:
            values = [cells[method, share]["accuracy"] for share in shares]
            texts = [
                f"**{value:.1f}**" if value == best[share] else f"{value:.1f}"
                for value, share in zip(values, shares, strict=True)
            ]
            columns.append(" / ".join(texts))
        lines.append(f"| {net} ({dense:.1f}) | " + " | ".join(columns) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("--compensate", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--check", type=Path)
    given = parser.parse_args()
    cells = list(latest(read(given.records)).values())
    rows = table(cells)
    text = markdown(rows, given.compensate)
    if given.picture is not None:
        mine = [row for row in rows if row["compensate"] == given.compensate]
        chosen = [row for row in mine if row["net"] in PANELS and row["method"] in METHODS]
        chosen.sort(key=lambda row: PANELS.index(row["net"]))
        charts = sparsity_charts(chosen)
        Figure(given.picture.name, charts, order=method_order(cells)).save(given.picture.parent)
    if given.check is not None and text not in given.check.read_text():
        sys.exit(f"{given.check} must hold the table of {given.records}; run this without --check")
    print(text)


if __name__ == "__main__":
    main()
