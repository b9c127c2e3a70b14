"""Benchmarks: every method on the same networks, with and without compensation of the last layer."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from feta_lab.experiments.bench import table
from feta_lab.page.blocks import Block, Cell, Facts, Fold, Section, Table
from feta_lab.page.document import publish
from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.page.sections.fig2 import colours
from feta_lab.records import groups
from feta_lab.results import Results
from feta_lab.results.summaries import by_setting, method_order

Row = Mapping[str, Any]
KINDS = ((False, "Without compensation", "plain"), (True, "With compensation of the last layer", "compensated"))
COLUMNS = (
    "net", "sparsity (%)", "method", "accuracy (%)", "worst–best", "lost", "relative error", "seconds", "× floor",
)  # fmt: skip


def sections(results: Results) -> list[Section]:
    """A section per benchmark folder."""
    found = []
    for source in results.sources:
        if source.kind == "bench":
            # A network that was run on two devices or data sets is two networks here.
            nets = by_setting(source.records).items()
            rows = [row | {"net": net} for net, mine in nets for row in table(mine)]
            parts = bench_sections(rows, colours(results), f"{source.name}-")
            found.append(Section(f"Benchmark {source.name}", tuple(parts)))
    return found


def write_bench(folder: Path, cells: Sequence[Row]) -> Path:
    """Write the page of one benchmark, report.html, and its figures beside it; returns the page's path.

    folder: where the files go.
    cells: the records of `feta_lab.experiments.run("bench")`.
    """
    rows = table(cells)
    blocks: list[Block] = [Facts(tuple(verdicts(rows))), *bench_sections(rows, method_order(cells))]
    subtitle = f"test accuracy without retraining; data: {', '.join(sorted({cell['data'] for cell in cells}))}"
    return publish(folder / "report.html", "feta benchmark", subtitle, blocks, cells[0]["environment"])


def bench_sections(rows: Sequence[Row], order: tuple[str, ...], prefix: str = "") -> list[Section]:
    """Accuracy against sparsity and time, and every cell; without compensation first, as the paper has none.

    rows: of `feta_lab.experiments.bench.table`.
    order: the methods in the order in which they take colours.
    prefix: stands before the names of the figures' files.
    """
    found = []
    for on, title, stem in KINDS:
        mine = [row for row in rows if row["compensate"] == on]
        if mine:
            shown = min((row["sparsity"] for row in mine), key=lambda share: share != 0.9)  # 0.9, or else the first
            charts = {"sparsity": sparsity_charts(mine), "time": time_charts(mine, shown)}
            blocks: list[Block] = [
                Figure(f"{prefix}{name}-{stem}", panels, f"Accuracy against {name}", order)
                for name, panels in charts.items()
                if panels
            ]
            found.append(Section(title, (*blocks, Fold("Every cell", (bench_table(mine),)))))
    return found


def sparsity_charts(rows: Sequence[Row]) -> tuple[LineChart, ...]:
    """Accuracy against sparsity, a panel per network."""
    nets = groups((row for row in rows if row["seeds"]), "net").values()
    ordered = (sorted(mine, key=lambda row: float(row["sparsity"])) for mine in nets)
    return tuple(_panel(mine, "{net} (dense {dense:.2f} %)", "sparsity (%)") for mine in ordered)


def time_charts(rows: Sequence[Row], sparsity: float) -> tuple[LineChart, ...]:
    """Accuracy against time at one sparsity, a panel per network; times of a shared machine are left out."""
    # A time of 0 has no place on a logarithmic axis.
    ran = [r for r in rows if r["sparsity"] == sparsity and r["seeds"] and r["timed"] and r["seconds"] > 0]
    title = f"{{net}} at {100 * sparsity:g} % (floor {{floor:.2f}} s)"
    return tuple(_panel(mine, title, "seconds") for mine in groups(ran, "net").values())


def _panel(rows: Sequence[Row], title: str, x: Literal["sparsity (%)", "seconds"]) -> LineChart:
    """A line per method through its accuracies."""
    lines: dict[str, list[Point]] = {method: [] for method in method_order(rows)}
    for row in rows:
        at = row["seconds"] if x == "seconds" else 100 * row["sparsity"]
        lines[row["method"]].append(Point(at, row["accuracy"], row["low"], row["high"]))
    return LineChart(title.format(**rows[0]), x, "test accuracy (%)", lines, log_x=x == "seconds")


def bench_table(rows: Sequence[Row]) -> Table:
    """Every cell; one that could not be run has its reason instead of numbers."""
    lines: list[tuple[Cell, ...]] = []
    for r in rows:
        cell = (r["net"], round(100 * r["sparsity"], 1), r["method"])
        if not r["seeds"]:
            lines.append((*cell, None, r["reason"], None, None, None, None))
            continue
        scores = (round(r["accuracy"], 2), f"{r['low']:.2f}–{r['high']:.2f}", round(r["dense"] - r["accuracy"], 2))
        times = (round(r["seconds"], 3), round(r["seconds"] / r["floor"], 2)) if r["timed"] else (None, None)
        lines.append((*cell, *scores, round(r["relative_error"], 4), *times))
    return Table("Every cell: mean over the seeds, median time", COLUMNS, tuple(lines))


def verdicts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What the benchmark was asked to show, counted from the rows, as (claim, numbers)."""
    said = []
    for on, where in ((False, "without"), (True, "with")):
        mine = [r for r in rows if r["seeds"] and r["compensate"] == on and r["sparsity"] in (0.9, 0.95, 0.98)]
        gaps = []
        for cells in groups(mine, "net", "sparsity").values():
            ours = [row["accuracy"] for row in cells if row["method"] == "feta"]
            rivals = [row["accuracy"] for row in cells if row["method"].partition(":")[0] != "feta"]
            if ours and rivals:
                gaps.append(max(0.0, max(rivals) - ours[-1]))
        if gaps:
            best = sum(gap <= 1e-9 for gap in gaps)
            numbers = f"{best} of {len(gaps)} cells, at most {max(gaps):.2f} points under"
            said.append((f"feta is the most accurate, {where} compensation", numbers))
    feta = [row for row in rows if row["compensate"] and row["method"] == "feta" and row["seeds"]]
    for share in (0.9, 0.95):
        lost = [row["dense"] - row["accuracy"] for row in feta if row["sparsity"] == share]
        if lost:
            numbers = f"{statistics.fmean(lost):.2f} points over {len(lost)} networks"
            said.append((f"mean loss at {100 * share:g} % with compensation", numbers))
    return said
