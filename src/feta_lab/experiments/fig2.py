"""Figure 2: accuracy without retraining against the time it takes to prune, with and without refinement.

    prune            labels are never seen
    prune + refine   the survivors are fitted to the dense network's outputs; its time is its own column

A network is pruned once for both.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from feta.errors import check_range
from feta.tuning.bench import BATCH
from feta.tuning.refine import refine
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.pruning import NAMED, PaperPlan, Pruned


@dataclass(frozen=True)
class Fig2(PaperPlan):
    """One refinement for all methods."""

    refine: tuple[bool, ...] = (False, True)
    passes: int = 3  # of the refinement

    name: ClassVar[str] = "fig2"
    lines: ClassVar[tuple[str, ...]] = (*PaperPlan.lines, "refine")
    columns: ClassVar[tuple[str, ...]] = ("dense_accuracy", "accuracy", "prune_seconds", "refine_seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("fig2", ">= 1", passes=self.passes)  # now, not in every cell

    def cells(self) -> list[Cell]:
        """Refinement changes fastest: it goes on from what was just pruned."""
        stages = [{"refine": refined, "passes": self.passes if refined else None} for refined in self.refine]
        return [cell | stage for cell in self.matches() for stage in stages]

    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Prune, or take what the cell before has pruned; refine; judge."""
        subject = self.subject(cell)
        pruned = _pruned(self, *((name, cell[name]) for name in NAMED))
        if not cell["refine"]:
            return {**pruned.fields, **subject.scores(pruned.model), "refine_seconds": 0.0}
        rows = min(cell["samples"] or len(subject.images), len(subject.images))
        steps = self.passes * -(-rows // BATCH)
        how = {"steps": steps, "n_samples": cell["samples"], "seed": cell["seed"], "device": self.where}
        refined = refine(pruned.model, subject.model, subject.images, masks=pruned.masks, **how)
        found = {name: getattr(refined.report, name) for name in ("loss_before", "loss_after", "stopped")}
        found |= {"refine_seconds": refined.report.seconds, **subject.scores(refined.model)}
        return pruned.fields | found | {"relative_error": None}  # known of the pruned layers, not of the refined ones


@functools.lru_cache(maxsize=1)
def _pruned(plan: Fig2, *cell: tuple[str, Any]) -> Pruned:
    return plan.pruned(dict(cell))
