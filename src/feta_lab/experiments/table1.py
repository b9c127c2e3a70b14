"""Table 1: prune the hidden fully connected layers, retrain until the accuracy is back, and add up the time.

    total = pruning + retraining

Every method prunes to the same count and is retrained by the same optimiser with the same learning rate. Retraining
ends when validation accuracy is within `tolerance` points of the dense network's, when it has not risen for
`patience` epochs, or when `epochs` are spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from feta.tuning.retrain import Retraining, retrain
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.pruning import PaperPlan
from feta_lab.judge import judge

SETTINGS = ("patience", "tolerance", "learning_rate", "decay", "batch_size")  # of feta.retrain


@dataclass(frozen=True)
class Table1(PaperPlan):
    """One way to retrain for all methods."""

    epochs: int = 30  # of retraining, at the most
    patience: float = 5.0  # epochs without a better validation accuracy
    tolerance: float = 0.1  # points of validation accuracy
    learning_rate: float = 0.01
    decay: float = 0.95  # of the learning rate, per epoch
    batch_size: int = 32

    name: ClassVar[str] = "table1"
    columns: ClassVar[tuple[str, ...]] = (
        "dense_accuracy", "accuracy", "retrained_accuracy", "recovered", "epochs", "prune_seconds", "total_seconds",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        Retraining(**self.retraining())  # checked now, not in every cell

    def retraining(self) -> dict[str, Any]:
        """The arguments of feta.retrain that a plan sets."""
        return {"max_epochs": self.epochs, **{name: getattr(self, name) for name in SETTINGS}}

    def cells(self) -> list[Cell]:
        return [cell | self.retraining() for cell in self.matches()]

    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Prune, judge, retrain, judge."""
        subject, pruned = self.subject(cell), self.pruned(cell)
        before, held_out = subject.scores(pruned.model), subject.data.validation
        images = subject.data.normalisation.apply(held_out.images, self.where)
        rows, settings = (subject.images, subject.labels), Retraining(**self.retraining())
        how: dict[str, Any] = {
            "validation": (images, held_out.labels.to(self.where)),
            "goal": subject.dense["validation"],
        }
        how |= {"masks": pruned.masks, "seed": cell["seed"], "device": self.where}
        retrained = retrain(pruned.model, rows, settings, **how)
        after, report = judge(retrained.model, subject.data, self.where), retrained.report
        total = pruned.fields["prune_seconds"] + report.seconds
        found = {name: getattr(report, name) for name in ("recovered", "epochs", "stopped")}
        found |= {"retrained_accuracy": after["test"], "retrained_validation": after["validation"]}
        return {**pruned.fields, **before, **found, "retrain_seconds": report.seconds, "total_seconds": total}
