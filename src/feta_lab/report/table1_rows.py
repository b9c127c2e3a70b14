"""Table 1 over the seeds: a row per network and method, with the paper's cell beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feta_lab import paper
from feta_lab.results import Record
from feta_lab.summaries import Spread, at_sparsity, by_setting, failures, method_order, spread


@dataclass(frozen=True)
class Row:
    """One network and method over the seeds."""

    net: str
    preset: str
    method: str
    prune: Spread | None
    retrain: Spread | None
    total: Spread | None
    dense: Spread | None
    pruned: Spread | None
    retrained: Spread | None
    recovered: int
    runs: int
    epochs: Spread | None
    reason: str

    @property
    def arrived(self) -> bool:
        return self.runs > 0 and self.recovered == self.runs and not self.reason

    @property
    def printed(self) -> paper.Printed | None:
        return paper.TABLE1.get((self.preset, self.method))


def summary(records: Sequence[Record]) -> list[Row]:
    """A row per network and method, at the paper's sparsity."""
    rows = []
    for net, mine in by_setting(at_sparsity(records, paper.SPARSITY)).items():
        reasons = failures(mine)
        for method in method_order(mine):
            cells = [record for record in mine if record["method"] == method]
            rows.append(_row(net, method, cells, reasons.get(method, "")))
    return rows


def _row(net: str, method: str, cells: Sequence[Record], reason: str) -> Row:
    """Times of cells that shared the machine with others are left out."""
    ran = [r for r in cells if r["accuracy"] is not None]
    timed = [r for r in ran if r.get("timed", True)]
    return Row(
        net=net,
        preset=cells[0]["net"],
        method=method,
        prune=spread(r["prune_seconds"] for r in timed),
        retrain=spread(r["retrain_seconds"] for r in timed),
        total=spread(r["prune_seconds"] + r["retrain_seconds"] for r in timed),
        dense=spread(r["dense_accuracy"] for r in ran),
        pruned=spread(r["accuracy"] for r in ran),
        retrained=spread(r["retrained_accuracy"] for r in ran),
        recovered=sum(bool(r["recovered"]) for r in ran),
        runs=len(ran),
        epochs=spread(r["epochs"] for r in ran if r.get("epochs") is not None),
        reason=reason,
    )


def plain(row: Row) -> dict[str, object]:
    """The numbers of a row, for programs."""
    numbers: dict[str, object] = {
        "net": row.net,
        "method": row.method,
        "runs": row.runs,
        "recovered": row.recovered,
    }
    for name in ("prune", "retrain", "total"):
        numbers |= _ends(f"{name}_seconds", getattr(row, name))
    for name in ("dense", "pruned", "retrained"):
        numbers |= _ends(f"{name}_accuracy", getattr(row, name))
    numbers["epochs"] = row.epochs.mean if row.epochs else None
    old = row.printed
    numbers |= {
        "paper_seconds": old and old.seconds,
        "paper_accuracy": old and old.accuracy,
        "reason": row.reason,
    }
    return numbers


def _ends(name: str, value: Spread | None) -> dict[str, object]:
    parts = (value.mean, value.low, value.high) if value else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), parts, strict=True))
