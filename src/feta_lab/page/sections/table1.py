"""Table 1: pruning and retraining to 90 %, the paper's numbers beside ours."""

from collections.abc import Sequence

from feta_lab import paper
from feta_lab.page.blocks import Cell, Fold, Section, Shown, Table, Text
from feta_lab.page.sections.tables import FAILED, Entry, Row, full_table, groups, mean_cell, pivot
from feta_lab.results import Record, Results
from feta_lab.results.summaries import at_sparsity, duration, failures, spread

NOTE = (
    f"Paper: {paper.SOURCE}; dense networks on a laptop CPU, conv networks pruned on 48 CPUs and retrained on a GPU. "
    "Ours: the hidden fully connected layers at 90 %, retrained until validation accuracy is back; over the seeds, "
    "the median of times and the mean of accuracies. A time after “>” did not bring every seed back. Bold: the least "
    "time of those that did."
)
COLUMNS = {
    "network": "net", "method": "method", "runs": "runs", "recovered": "recovered", "prune": "prune_seconds",
    "retrain": "retrain_seconds", "total": "total_seconds", "paper's total": "paper_seconds",
    "dense (%)": "dense_accuracy", "pruned (%)": "pruned_accuracy", "retrained (%)": "retrained_accuracy",
    "paper's (%)": "paper_accuracy", "epochs": "epochs", "failed because": "reason",
}  # fmt: skip


def sections(results: Results) -> list[Section]:
    """The section of Table 1; none without its records."""
    records = results.of("table1")
    rows = summary(records)
    if not rows:
        return []
    note = Text(f"{NOTE} Ours were run here: {machines(records)}")
    every = Fold("Every cell, with its spread", (full_table("table1", COLUMNS, rows),))
    return [Section("Table 1", (note, time_table(rows), accuracy_table(rows), every))]


def summary(records: Sequence[Record]) -> list[Row]:
    """A row per network and method, at the paper's sparsity."""
    return [
        {"net": net, "method": method, **_summary(cells, paper.TABLE1.get((cells[0]["net"], method)))}
        for net, (method,), cells in groups(at_sparsity(records, paper.SPARSITY), "method")
    ]


def _summary(cells: Sequence[Record], old: paper.Printed | None) -> Row:
    """Cells that shared the machine with others count, but their times do not."""
    ran = [r for r in cells if r["accuracy"] is not None]
    timed = [r for r in ran if r.get("timed", True)]
    seconds = ("prune_seconds", "retrain_seconds")
    scores = {"dense": "dense_accuracy", "pruned": "accuracy", "retrained": "retrained_accuracy"}
    return {
        "runs": len(ran),
        "recovered": sum(bool(r["recovered"]) for r in ran),
        **{name: spread(r[name] for r in timed) for name in seconds},
        "total_seconds": spread(sum(r[name] for name in seconds) for r in timed),
        **{f"{which}_accuracy": spread(r[name] for r in ran) for which, name in scores.items()},
        "epochs": spread(r["epochs"] for r in ran if r.get("epochs") is not None),
        "paper_seconds": Shown(old.time, old.seconds) if old else None,
        "paper_accuracy": Shown(f"{old.accuracy:g}", old.accuracy) if old else None,
        "reason": failures(cells).get(cells[0]["method"], ""),
    }


def time_table(rows: Sequence[Row]) -> Table:
    """Total times, the paper's beside ours; the least time of a column stands out."""
    entries = []
    for row in rows:
        total, paper_time = row["total_seconds"], row["paper_seconds"]
        back = row["recovered"] == row["runs"] and not row["reason"]
        ours: Cell = FAILED if row["reason"] and not row["runs"] else None
        if total:
            ours = Shown(("" if back else "> ") + duration(total.median), total.median)
        rank = total.median if total and back else None
        entries += _pair(row, paper_time, ours, paper_time and paper_time.key, rank)
    return pivot("table1-time", "Total time: pruning and retraining", ("method",), entries)


def accuracy_table(rows: Sequence[Row]) -> Table:
    """Test accuracy after retraining, the paper's beside ours."""
    entries = []
    for row in rows:
        ours = mean_cell(row["retrained_accuracy"], 1) or (FAILED if row["reason"] else None)
        entries += _pair(row, row["paper_accuracy"], ours)
    return pivot("table1-accuracy", "Test accuracy after retraining (%)", ("method",), entries)


def _pair(row: Row, theirs: Cell, ours: Cell, *ranks: float | None) -> list[Entry]:
    """The paper's cell and ours, side by side."""
    columns = (f"{row['net']} paper", f"{row['net']} ours")
    return [
        Entry((row["method"],), column, cell, column, rank)
        for column, cell, rank in zip(columns, (theirs, ours), ranks or (None, None), strict=True)
    ]


def machines(records: Sequence[Record]) -> str:
    """Which networks were timed on what: "dense-mnist on AMD EPYC with 1 thread; conv-mnist on NVIDIA H200."."""
    nets: dict[str, dict[str, None]] = {}
    for record in records:
        machine = record.get("environment") or {}
        threads, name = machine.get("threads"), machine.get("processor", "a CPU")
        name += f" with {threads} thread{'' if threads == '1' else 's'}" if threads else ""
        if str(record.get("device", "")).startswith("cuda"):
            name = machine.get("gpu") or "a GPU"
        nets.setdefault(name, {})[record["net"]] = None
    return "; ".join(f"{', '.join(held)} on {name}" for name, held in nets.items()) + "."
