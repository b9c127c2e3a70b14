"""The benchmark's page and figures: functions of its records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feta_lab import page
from feta_lab.experiments.bench import table

Row = Mapping[str, Any]


def method_order(cells: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Our method first, then the others as they come: one colour each on every page and figure."""
    names = list(dict.fromkeys(cell["method"] for cell in cells))
    return tuple(sorted(names, key=lambda name: not name.startswith("feta")))


def sparsity_charts(rows: Sequence[Row], compensate: bool) -> tuple[page.LineChart, ...]:
    """Accuracy against sparsity, a panel per network."""
    panels = []
    for net in _nets(rows):
        mine = [row for row in rows if row["net"] == net and row["compensate"] == compensate and row["seeds"]]
        series = tuple(
            page.Series(
                method,
                tuple(
                    page.Point(100 * r["sparsity"], r["accuracy"] / 100, r["low"] / 100, r["high"] / 100)
                    for r in sorted(mine, key=lambda r: float(r["sparsity"]))
                    if r["method"] == method
                ),
            )
            for method in dict.fromkeys(r["method"] for r in mine)
        )
        if series:
            dense = f"dense {mine[0]['dense']:.2f} %"
            panels.append(page.LineChart(f"{net} ({dense})", "sparsity (%)", "test accuracy", series, y_percent=True))
    return tuple(panels)


def time_charts(rows: Sequence[Row], compensate: bool, sparsity: float) -> tuple[page.LineChart, ...]:
    """Accuracy against time at one sparsity, a panel per network; threshold's time is too small to show."""
    panels = []
    for net in _nets(rows):
        mine = [
            r
            for r in rows
            if (r["net"], r["compensate"], r["sparsity"]) == (net, compensate, sparsity) and r.get("seconds", 0) > 0
        ]
        series = tuple(
            page.Series(
                r["method"], (page.Point(r["seconds"], r["accuracy"] / 100, r["low"] / 100, r["high"] / 100),)
            )
            for r in mine
        )
        if series:
            panels.append(
                page.LineChart(
                    net,
                    "seconds",
                    "test accuracy",
                    series,
                    log_x=True,
                    y_percent=True,
                    markers_only=True,
                    caption=f"floor {mine[0]['floor']:.2f} s",
                )
            )
    return tuple(panels)


def bench_table(rows: Sequence[Row], compensate: bool) -> page.Table:
    columns = (
        "net",
        "sparsity (%)",
        "method",
        "accuracy (%)",
        "worst–best",
        "lost",
        "relative error",
        "seconds",
        "× floor",
    )
    lines = []
    for r in rows:
        if r["compensate"] != compensate:
            continue
        if not r["seeds"]:
            lines.append(
                (
                    r["net"],
                    100 * r["sparsity"],
                    r["method"],
                    None,
                    r.get("reason", ""),
                    None,
                    None,
                    None,
                    None,
                )
            )
            continue
        lines.append(
            (
                r["net"],
                round(100 * r["sparsity"], 1),
                r["method"],
                round(r["accuracy"], 2),
                f"{r['low']:.2f}–{r['high']:.2f}",
                round(r["dense"] - r["accuracy"], 2),
                round(r["relative_error"], 4),
                round(r["seconds"], 3) if r["timed"] else None,
                round(r["seconds"] / r["floor"], 2) if r["timed"] else None,
            )
        )
    return page.Table("Every cell: mean over the seeds, median time", columns, tuple(lines))


def verdicts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What the benchmark was asked to show, counted from the rows."""
    said = []
    for compensate in (False, True):
        cells = best = 0
        worst_gap = 0.0
        for group in _cells(rows, compensate, (0.9, 0.95, 0.98)):
            ours = next((r["accuracy"] for r in group if r["method"] == "feta"), None)
            rivals = [r["accuracy"] for r in group if r["method"].partition(":")[0] != "feta"]
            if ours is None or not rivals:
                continue
            gap = max(0.0, max(rivals) - ours)
            cells, best, worst_gap = cells + 1, best + (gap <= 1e-9), max(worst_gap, gap)
        if cells:
            where = "with" if compensate else "without"
            said.append(
                (
                    f"feta is the most accurate, {where} compensation",
                    f"{best} of {cells} cells, at most {worst_gap:.2f} points under",
                )
            )
    for sparsity in (0.9, 0.95):
        lost = [
            r["dense"] - r["accuracy"]
            for r in rows
            if r["compensate"] and r["method"] == "feta" and r["sparsity"] == sparsity and r["seeds"]
        ]
        if lost:
            said.append(
                (
                    f"mean loss at {100 * sparsity:g} % with compensation",
                    f"{sum(lost) / len(lost):.2f} points over {len(lost)} networks",
                )
            )
    return said


def bench_page(cells: Sequence[Mapping[str, Any]]) -> str:
    rows = table(cells)
    blocks: list[page.Block] = []
    found = verdicts(rows)
    if found:
        blocks.append(page.Facts(tuple(found)))
    for compensate in (False, True):
        mine = [r for r in rows if r["compensate"] == compensate]
        if not mine:
            continue
        title = "With compensation of the last layer" if compensate else "Without compensation"
        middle = 0.9 if any(r["sparsity"] == 0.9 for r in mine) else mine[0]["sparsity"]
        parts: list[page.Block] = [
            page.Text("Accuracy against sparsity", ()),
            page.Panels(sparsity_charts(rows, compensate)),
        ]
        timed = time_charts(rows, compensate, middle)
        if timed:
            parts += [page.Text(f"Accuracy against time at {100 * middle:g} %", ()), page.Panels(timed)]
        blocks.append(page.Section(title, (*parts, bench_table(rows, compensate))))
    labels = sorted({cell["data"] for cell in cells})
    subtitle = f"test accuracy without retraining; data: {', '.join(labels)}"
    return page.render("feta benchmark", subtitle, blocks, cells[0]["environment"], method_order(cells))


def _nets(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["net"] for row in rows))


def _cells(rows: Sequence[Row], compensate: bool, sparsities: Sequence[float]) -> list[list[Row]]:
    """Rows of all methods for one network and sparsity."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["compensate"] == compensate and row["sparsity"] in sparsities and row["seeds"]:
            groups.setdefault((row["net"], row["sparsity"]), []).append(row)
    return list(groups.values())
