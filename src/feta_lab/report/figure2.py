"""Figure 2: accuracy without retraining against time, a panel per network, pruned and refined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from feta_lab import page, paper
from feta_lab.plots import save_figure
from feta_lab.report.cells import mean_points, points, time
from feta_lab.report.files import Exhibit
from feta_lab.results import Record, Results
from feta_lab.summaries import Spread, at_sparsity, by_setting, failures, method_order, spread

STAGES = ("prune", "prune + refine", "prune + retrain")
NOTE = (
    "Filled: pruned; hollow: pruned, then refined without labels, the line joins the two. Mean over the seeds, "
    "whiskers from the lowest to the highest. The legend's buttons hide a method in all panels; arrow keys read the "
    "points."
)


@dataclass(frozen=True)
class Row:
    """One network, method and stage over the seeds; seconds are those of the whole way to the stage."""

    net: str
    device: str
    method: str
    stage: str
    seconds: Spread | None
    accuracy: Spread | None
    lost: Spread | None
    reason: str


def order(results: Results) -> tuple[str, ...]:
    """One colour per method on the whole page; settings of a method take theirs after all methods."""
    names = method_order(results.of("table1", "fig2", "bench"))
    return tuple(sorted(names, key=lambda name: ":" in name))


def shown_sparsity(records: Sequence[Record]) -> float:
    """The paper's, or else the one nearest to it."""
    return float(min((r["sparsity"] for r in records), key=lambda share: abs(share - paper.SPARSITY)))


def summary(results: Results) -> list[Row]:
    """Pruned and refined cells of Figure 2, retrained ones of Table 1, at one sparsity."""
    cells = results.of("fig2")
    if not cells:
        return []
    share = shown_sparsity(cells)
    staged: list[Record] = [{**r, "stage": STAGES[int(bool(r["refine"]))]} for r in at_sparsity(cells, share)]
    staged += [_retrained(r) for r in at_sparsity(results.of("table1"), share)]
    rows = []
    for net, mine in by_setting(staged).items():
        for method in method_order(mine):
            for stage in STAGES:
                part = [r for r in mine if (r["method"], r["stage"]) == (method, stage)]
                if part:
                    rows.append(_row(net, method, stage, part))
    return rows


def _retrained(record: Record) -> Record:
    return {**record, "stage": STAGES[2], "accuracy": record.get("retrained_accuracy")}


def _row(net: str, method: str, stage: str, cells: Sequence[Record]) -> Row:
    ran = [r for r in cells if r["accuracy"] is not None]
    timed = [r for r in ran if r.get("timed", True)]
    return Row(
        net, str(cells[0].get("device", "")), method, stage,
        spread(r["prune_seconds"] + (r.get("refine_seconds") or 0) + (r.get("retrain_seconds") or 0) for r in timed),
        spread(r["accuracy"] for r in ran),
        spread(r["dense_accuracy"] - r["accuracy"] for r in ran),
        failures(cells).get(method, ""),
    )  # fmt: skip


def charts(results: Results) -> tuple[page.LineChart, ...]:
    """A panel per network: a line per method from what it pruned to what was refined."""
    rows = [row for row in summary(results) if row.stage != STAGES[2]]
    panels = []
    for net in dict.fromkeys(row.net for row in rows):
        mine = [row for row in rows if row.net == net]
        dense = [row.accuracy.mean + row.lost.mean for row in mine if row.accuracy and row.lost]
        lines: dict[str, list[page.Point]] = {}
        for row in mine:
            if row.seconds and row.accuracy and row.seconds.mean > 0:
                refined = row.stage == STAGES[1]
                lines.setdefault(row.method, []).append(_point(row.seconds, row.accuracy, refined))
        if lines:
            series = tuple(page.Series(name, tuple(points)) for name, points in lines.items())
            title = f"{net} (dense {dense[0]:.2f} %)"
            chart = page.LineChart(
                title, _seconds_on(mine[0].device), "test accuracy", series, log_x=True, y_percent=True
            )
            panels.append(replace(chart, whiskers=True))
    return tuple(panels)


def _seconds_on(device: str) -> str:
    kind = {"cpu": " on a CPU", "cuda": " on a GPU"}
    return "seconds" + kind.get(device.partition(":")[0], "")


def _point(seconds: Spread, accuracy: Spread, refined: bool) -> page.Point:
    low, high = (accuracy.low / 100, accuracy.high / 100) if accuracy.n > 1 else (None, None)
    note = "pruned and refined" if refined else "pruned"
    return page.Point(seconds.mean, accuracy.mean / 100, low, high, note, refined)


def sections(results: Results) -> list[page.Block]:
    rows = summary(results)
    if not rows:
        return []
    share = 100 * shown_sparsity(results.of("fig2"))
    blocks: list[page.Block] = [page.Text(None, (f"Hidden layers at {share:g} %. {NOTE}",))]
    panels = charts(results)
    if panels:
        blocks.append(page.Panels(panels))
    blocks += [stage_table(rows), page.Fold("Every cell, with its spread and time", (full_table(rows),))]
    return [page.Section("Figure 2", tuple(blocks))]


def stage_table(rows: Sequence[Row]) -> page.Table:
    """Test accuracy by method, a column per network and stage; the best of a column stands out."""
    nets = list(dict.fromkeys(row.net for row in rows))
    stages = [stage for stage in STAGES if any(row.stage == stage for row in rows)]
    at = {(row.net, row.method, row.stage): row for row in rows}
    methods = list(dict.fromkeys(row.method for row in rows))
    lines: list[tuple[page.Cell, ...]] = []
    strong = set()
    for method in methods:
        for stage in stages:
            found = [at.get((net, method, stage)) for net in nets]
            if any(found):
                cells = [mean_points(row.accuracy, 2) or page.Shown("failed", None) if row else None for row in found]
                lines.append((method, stage, *cells))
    for column in range(2, 2 + len(nets)):
        for stage in stages:
            values = {
                number: cell.key
                for number, line in enumerate(lines)
                if line[1] == stage and isinstance(cell := line[column], page.Shown) and cell.key is not None
            }
            if values:
                strong.add((max(values, key=values.__getitem__), column))
    caption = "Test accuracy (%), mean over the seeds; bold: the best of its stage"
    return page.Table(caption, ("method", "stage", *nets), tuple(lines), strong=frozenset(strong))


def full_table(rows: Sequence[Row]) -> page.Table:
    columns = ("network", "method", "stage", "time", "accuracy (%)", "lost (points)", "failed because")
    lines: tuple[tuple[page.Cell, ...], ...] = tuple(
        (
            row.net,
            row.method,
            row.stage,
            time(row.seconds),
            points(row.accuracy),
            points(row.lost),
            row.reason,
        )
        for row in rows
    )
    return page.Table("Mean over the seeds (lowest–highest)", columns, lines)


def exhibits(results: Results) -> list[Exhibit]:
    rows = summary(results)
    if not rows:
        return []
    plain = tuple(
        {
            "net": row.net, "method": row.method, "stage": row.stage, "seconds": row.seconds and row.seconds.mean,
            "accuracy": row.accuracy and row.accuracy.mean, "accuracy_low": row.accuracy and row.accuracy.low,
            "accuracy_high": row.accuracy and row.accuracy.high, "lost": row.lost and row.lost.mean,
            "reason": row.reason,
        }
        for row in rows
    )  # fmt: skip
    return [Exhibit("fig2", full_table(rows), plain), Exhibit("fig2-stages", stage_table(rows))]


def figures(results: Results, folder: Path) -> list[Path]:
    panels = charts(results)
    return save_figure(panels, folder / "fig2", order=order(results)) if panels else []
