"""Accuracy lost against sparsity, for every experiment that pruned without retraining."""

from collections.abc import Sequence

from feta_lab.page.blocks import Fold, Section, Table
from feta_lab.page.sections.tables import Entry, groups, mean_cell, pivot, scores
from feta_lab.results import Record, Results
from feta_lab.results.summaries import method_order

CAPTION = "points of test accuracy lost, mean over the seeds; bold: the least"


def sections(results: Results) -> list[Section]:
    """One section; the table with the most cells is open, the others are behind a fold each."""
    cells = results.of("fig2")
    offers: list[tuple[str, str, list[Record]]] = [
        ("fig2", "fig2, pruned", [r for r in cells if not r["refine"]]),
        ("fig2-refined", "fig2, pruned and refined", [r for r in cells if r["refine"]]),
    ]
    for source in (source for source in results.sources if source.kind == "bench"):
        for on, words, suffix in ((False, "without", ""), (True, "with", "-compensated")):
            mine = [r for r in source.records if r["compensate"] == on]
            offers.append((f"{source.name}{suffix}", f"{source.name}, {words} compensation", mine))
    offers = sorted((offer for offer in offers if offer[2]), key=lambda offer: _size(offer[2]), reverse=True)
    tables = [loss_table(f"loss-{name}", f"{words}: {CAPTION}", mine) for name, words, mine in offers]
    folds = [Fold(words, (table,)) for (_, words, _), table in zip(offers, tables, strict=True)]
    return [Section("Loss against sparsity", (tables[0], *folds[1:]))] if tables else []


def loss_table(name: str, caption: str, records: Sequence[Record]) -> Table:
    """A row per network and sparsity, a column per method; the least loss of a row stands out."""
    entries = []
    for net, (share, method), cells in groups(records, "sparsity", "method"):
        lost = scores(cells)["lost"]
        place = (net, round(100 * share, 1))
        entries.append(Entry(place, method, mean_cell(lost), place, lost.mean if lost else None))
    return pivot(name, caption, ("network", "sparsity (%)"), entries, method_order(records))


def _size(records: Sequence[Record]) -> tuple[bool, int]:
    """Several sparsities before one, then the most methods and networks."""
    cells = {(r["net"], r["method"], r["sparsity"]) for r in records}
    return len({sparsity for _, _, sparsity in cells}) > 1, len(cells)
