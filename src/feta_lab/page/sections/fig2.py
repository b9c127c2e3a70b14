"""Figure 2: accuracy without retraining against time, a panel per network, pruned and refined."""

from collections.abc import Sequence

from feta_lab import paper
from feta_lab.page.blocks import Fold, Section, Table, Text
from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.page.sections.tables import FAILED, Entry, Row, full_table, groups, mean_cell, pivot, point, scores
from feta_lab.results import Record, Results
from feta_lab.results.summaries import at_sparsity, failures, method_order, spread

STAGES = ("prune", "prune + refine", "prune + retrain")
NOTE = (
    "Filled: pruned; hollow: pruned, then refined without labels; the line joins the two. Over the seeds, the mean "
    "of accuracies and the median of times; whiskers from the lowest to the highest accuracy."
)
PARTS = ("prune_seconds", "refine_seconds", "retrain_seconds")
COLUMNS = {
    "network": "net", "method": "method", "stage": "stage", "time": "seconds", "accuracy (%)": "accuracy",
    "lost (points)": "lost", "failed because": "reason",
}  # fmt: skip


def sections(results: Results) -> list[Section]:
    """The section of Figure 2; none without its records."""
    rows = summary(results)
    if not rows:
        return []
    share = 100 * shown_sparsity(results.of("fig2"))
    charts, fills = accuracy_charts(rows), ("pruned", "pruned and refined")
    figures = [Figure("fig2", charts, order=colours(results), fills=fills)] if charts else []
    note = Text(f"Hidden layers at {share:g} %. {NOTE}")
    every = Fold("Every cell, with its spread and time", (full_table("fig2", COLUMNS, rows),))
    return [Section("Figure 2", (note, *figures, stage_table(rows), every))]


def colours(results: Results) -> tuple[str, ...]:
    """The methods in the order in which they take colours; methods with options come after all others."""
    names = method_order(results.of("table1", "fig2", "bench"))
    return tuple(sorted(names, key=lambda name: ":" in name))


def shown_sparsity(records: Sequence[Record]) -> float:
    """The paper's sparsity, or the recorded one that is nearest to it."""
    return float(min((r["sparsity"] for r in records), key=lambda share: abs(share - paper.SPARSITY)))


def summary(results: Results) -> Sequence[Row]:
    """Pruned and refined cells of Figure 2, retrained ones of Table 1; seconds are those of the whole way."""
    cells = results.of("fig2")
    if not cells:
        return []
    share = shown_sparsity(cells)
    staged: list[Record] = [{**r, "stage": int(bool(r["refine"]))} for r in at_sparsity(cells, share)]
    retrained = at_sparsity(results.of("table1"), share)
    staged += [{**r, "stage": 2, "accuracy": r.get("retrained_accuracy")} for r in retrained]
    rows = []
    for net, (method, stage), mine in groups(staged, "method", "stage"):
        timed = [r for r in mine if r["accuracy"] is not None and r.get("timed", True)]
        times = spread(sum(r.get(part) or 0 for part in PARTS) for r in timed)
        row = {"net": net, "method": method, "stage": STAGES[stage], "seconds": times, **scores(mine)}
        device = str(mine[0].get("device", "")).partition(":")[0]
        rows.append(row | {"reason": failures(mine).get(method, ""), "device": device})
    return rows


def accuracy_charts(rows: Sequence[Row]) -> tuple[LineChart, ...]:
    """A panel per network: a line per method from what it pruned to what was refined."""
    panels = []
    for net in dict.fromkeys(row["net"] for row in rows):
        lines: dict[str, list[Point]] = {}
        mine = [row for row in rows if row["net"] == net and row["stage"] != STAGES[2] and row["accuracy"]]
        for row in mine:
            if row["seconds"] and row["seconds"].median > 0:
                here = point(row["seconds"].median, row["accuracy"], hollow=row["stage"] == STAGES[1])
                lines.setdefault(row["method"], []).append(here)
        if lines:
            title = f"{net} (dense {mine[0]['accuracy'].mean + mine[0]['lost'].mean:.2f} %)"
            device = {"cpu": " on a CPU", "cuda": " on a GPU"}.get(mine[0]["device"], "")
            panels.append(LineChart(title, f"seconds{device}", "test accuracy (%)", lines, log_x=True))
    return tuple(panels)


def stage_table(rows: Sequence[Row]) -> Table:
    """Test accuracy by method and stage, a column per network."""
    entries = []
    for row in rows:
        net, method, stage, score = (row[name] for name in ("net", "method", "stage", "accuracy"))
        rank = -score.mean if score else None
        entries.append(Entry((method, stage), net, mean_cell(score) or FAILED, (net, stage), rank))
    caption = "Test accuracy (%), mean over the seeds; bold: the best of its stage"
    return pivot("fig2-stages", caption, ("method", "stage"), entries)
