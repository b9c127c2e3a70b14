"""Table 1: the paper's beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from feta_lab import page, paper
from feta_lab.durations import duration
from feta_lab.report.cells import mean_points, points, time
from feta_lab.report.environments import machines
from feta_lab.report.files import Exhibit
from feta_lab.report.table1_rows import Row, plain, summary
from feta_lab.results import Results

RIGHT: tuple[page.Align, ...] = ("right",)
NOTE = (
    f"Paper: {paper.SOURCE}; dense networks on a laptop CPU, conv networks pruned on 48 CPUs and retrained on a GPU. "
    "Ours: the hidden fully connected layers at 90 %, retrained until validation accuracy is back; mean over the "
    "seeds. A time after “>” did not bring every seed back. Bold: the least time of those that did."
)


def sections(results: Results) -> list[page.Block]:
    rows = summary(results.of("table1"))
    if not rows:
        return []
    tables = (
        time_table(rows),
        accuracy_table(rows),
        page.Fold("Every cell, with its spread", (full_table(rows),)),
    )
    note = f"{NOTE} Ours were run here: {machines(results.of('table1'))}"
    return [page.Section("Table 1", (page.Text(None, (note,)), *tables))]


def exhibits(results: Results) -> list[Exhibit]:
    rows = summary(results.of("table1"))
    if not rows:
        return []
    numbers = tuple(plain(row) for row in rows)
    return [
        Exhibit("table1", full_table(rows), numbers),
        Exhibit("table1-time", time_table(rows)),
        Exhibit("table1-accuracy", accuracy_table(rows)),
    ]


def time_table(rows: Sequence[Row]) -> page.Table:
    """Total times, the paper's beside ours, a pair of columns per network."""

    def old(row: Row) -> page.Cell:
        return page.Shown(row.printed.time, row.printed.seconds) if row.printed else None

    def ours(row: Row) -> page.Cell:
        if row.total is None:
            return page.Shown("failed", None) if row.reason and not row.runs else None
        return page.Shown(("" if row.arrived else "> ") + duration(row.total.mean), row.total.mean)

    table = side_by_side("Total time: pruning and retraining", rows, old, ours)
    return page.Table(table.caption, table.columns, table.rows, table.align, table.groups, _fastest(rows, table))


def accuracy_table(rows: Sequence[Row]) -> page.Table:
    """Test accuracy after retraining, the paper's beside ours."""

    def old(row: Row) -> page.Cell:
        return page.Shown(f"{row.printed.accuracy:g}", row.printed.accuracy) if row.printed else None

    def ours(row: Row) -> page.Cell:
        return mean_points(row.retrained) or (page.Shown("failed", None) if row.reason else None)

    return side_by_side("Test accuracy after retraining (%)", rows, old, ours)


def side_by_side(
    caption: str, rows: Sequence[Row], left: Callable[[Row], page.Cell], right: Callable[[Row], page.Cell]
) -> page.Table:
    nets = list(dict.fromkeys(row.net for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    at = {(row.net, row.method): row for row in rows}
    lines: list[tuple[page.Cell, ...]] = []
    for method in methods:
        cells: list[page.Cell] = [method]
        for net in nets:
            row = at.get((net, method))
            cells += [None, None] if row is None else [left(row), right(row)]
        lines.append(tuple(cells))
    return page.Table(
        caption,
        ("method", *(name for _ in nets for name in ("paper", "ours"))),
        tuple(lines),
        ("left", *RIGHT * (2 * len(nets))),
        (("", 1), *((net, 2) for net in nets)),
    )


def _fastest(rows: Sequence[Row], table: page.Table) -> frozenset[tuple[int, int]]:
    """The least time in each column, of the methods that brought the accuracy back."""
    arrived = {(row.net, row.method) for row in rows if row.arrived}
    nets = [words for words, _ in table.groups[1:]]
    strong = set()
    for column in range(1, len(table.columns)):
        net, ours = nets[(column - 1) // 2], column % 2 == 0
        times = {
            number: cell.key
            for number, row in enumerate(table.rows)
            if isinstance(cell := row[column], page.Shown)
            and cell.key is not None
            and (not ours or (net, row[0]) in arrived)
        }
        if times:
            strong.add((min(times, key=times.__getitem__), column))
    return frozenset(strong)


def full_table(rows: Sequence[Row]) -> page.Table:
    columns = (
        "network", "method", "prune", "retrain", "total", "paper's total", "dense (%)", "pruned (%)", "retrained (%)",
        "paper's (%)", "recovered", "epochs", "failed because",
    )  # fmt: skip
    return page.Table("Mean over the seeds (lowest–highest)", columns, tuple(_full_row(row) for row in rows))


def _full_row(row: Row) -> tuple[page.Cell, ...]:
    old = row.printed
    return (
        row.net,
        row.method,
        time(row.prune),
        time(row.retrain),
        time(row.total),
        page.Shown(old.time, old.seconds) if old else None,
        points(row.dense),
        points(row.pruned),
        points(row.retrained),
        old.accuracy if old else None,
        f"{row.recovered} of {row.runs}" if row.runs else None,
        mean_points(row.epochs, 2),
        row.reason,
    )
