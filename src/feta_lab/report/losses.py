"""Accuracy lost against sparsity: a row per network and sparsity, a column per method."""

from __future__ import annotations

from collections.abc import Sequence

from feta_lab import page
from feta_lab.report.cells import mean_points
from feta_lab.report.files import Exhibit
from feta_lab.results import Record, Results
from feta_lab.summaries import at_sparsity, by_method, by_setting, method_order, spread


def loss_table(caption: str, records: Sequence[Record]) -> page.Table:
    """Points lost against the dense network, mean over the seeds; the least of a row stands out."""
    methods = method_order(records)
    lines: list[tuple[page.Cell, ...]] = []
    strong = set()
    for net, mine in by_setting(records).items():
        for share in sorted({r["sparsity"] for r in mine}):
            runs = by_method(at_sparsity(mine, share))
            lost = {
                name: spread(r["dense_accuracy"] - r["accuracy"] for r in runs.get(name, {}).values())
                for name in methods
            }
            known = {name: value.mean for name, value in lost.items() if value is not None}
            if known:
                least = min(known, key=known.__getitem__)
                strong.add((len(lines), 2 + methods.index(least)))
            lines.append((net, round(100 * share, 1), *(mean_points(lost[name], 2) for name in methods)))
    return page.Table(caption, ("network", "sparsity (%)", *methods), tuple(lines), strong=frozenset(strong))


def tables(results: Results) -> list[tuple[str, page.Table]]:
    """One per experiment that pruned without retraining, the widest first."""
    cells = results.of("fig2")
    offers: list[tuple[str, str, list[Record]]] = [
        ("fig2", "fig2, pruned", [r for r in cells if not r["refine"]]),
        ("fig2-refined", "fig2, pruned and refined", [r for r in cells if r["refine"]]),
    ]
    for source in results.sources:
        if source.kind == "bench":
            for on in (False, True):
                words = f"{source.name}, {'with' if on else 'without'} compensation"
                mine = [r for r in source.records if r["compensate"] == on]
                offers.append((f"{source.name}{'-compensated' if on else ''}", words, mine))
    held = [offer for offer in offers if offer[2]]
    held.sort(key=lambda offer: _width(offer[2]), reverse=True)
    caption = "points of test accuracy lost, mean over the seeds; bold: the least"
    return [(name, loss_table(f"{words}: {caption}", mine)) for name, words, mine in held]


def _width(records: Sequence[Record]) -> tuple[bool, int]:
    """Several sparsities before one, then the most methods and networks."""
    cells = {(r["net"], r["method"], r["sparsity"]) for r in records}
    return len({sparsity for _, _, sparsity in cells}) > 1, len(cells)


def sections(results: Results) -> list[page.Block]:
    found = tables(results)
    if not found:
        return []
    (_, first), *others = found
    folds = tuple(page.Fold(table.caption.partition(":")[0], (table,)) for _, table in others)
    return [page.Section("Loss against sparsity", (first, *folds))]


def exhibits(results: Results) -> list[Exhibit]:
    return [Exhibit(f"loss-{name}", table) for name, table in tables(results)]
