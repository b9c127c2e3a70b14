"""Table 1: prune the hidden fully connected layers, retrain until the accuracy is back, and add up the time.

    total = pruning + retraining

Every method prunes to the same count and is retrained by the same optimiser with the same learning rate,
until validation accuracy is within `tolerance` points of the dense network's, it has not
risen for `patience` epochs, or `epochs` are spent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feta.tuning.retrain import Retraining, retrain
from feta_lab.experiments import Record
from feta_lab.judge import judge
from feta_lab.reproduce.experiment import Experiment, Table
from feta_lab.reproduce.plan import PruningPlan
from feta_lab.reproduce.subject import prepare, pruned, subject_of
from feta_lab.reproduce.summary import accuracy, failed, groups, seconds
from feta_lab.workers import Cell


@dataclass(frozen=True)
class Table1(PruningPlan):
    """One way to retrain for all methods."""

    epochs: int = 30  # of retraining, at the most
    patience: float = 5.0  # epochs without a better validation accuracy
    tolerance: float = 0.1  # points of validation accuracy
    learning_rate: float = 0.01
    decay: float = 0.95  # of the learning rate, per epoch
    batch_size: int = 32
    out: Path = Path("results/table1")

    def __post_init__(self) -> None:
        super().__post_init__()
        Retraining(**self.retraining())  # looked at now, not in every cell

    def retraining(self) -> dict[str, Any]:
        """The numbers of feta.retrain that a plan sets."""
        return {
            "max_epochs": self.epochs,
            "patience": self.patience,
            "tolerance": self.tolerance,
            "learning_rate": self.learning_rate,
            "decay": self.decay,
            "batch_size": self.batch_size,
        }


def cells(plan: Table1) -> list[Cell]:
    return [cell | plan.retraining() for cell in plan.grid()]


def run_one(plan: Table1, cell: Cell) -> Mapping[str, Any]:
    """Prune, judge, retrain, judge."""
    subject = subject_of(plan, cell)
    result = pruned(plan, cell)
    before = judge(result.model, subject.data, plan.where)
    retrained = retrain(
        result.model,
        (subject.images, subject.labels),
        Retraining(**plan.retraining()),
        masks=result.masks,
        validation=subject.validation,
        goal=subject.dense["validation"],
        seed=cell["seed"],
        device=plan.where,
    )
    after = judge(retrained.model, subject.data, plan.where)
    report = retrained.report
    return {
        **result.fields,
        "accuracy": before["test"],
        "validation": before["validation"],
        "retrain_seconds": report.seconds,
        "total_seconds": result.fields["prune_seconds"] + report.seconds,
        "retrained_accuracy": after["test"],
        "retrained_validation": after["validation"],
        "recovered": report.recovered,
        "epochs": report.epochs,
        "stopped": report.stopped,
    }


def table(records: Sequence[Record]) -> Table:
    """A row per network, sparsity and method: means of accuracies and medians of times over the seeds."""
    rows = []
    for (net, share, method), members in groups(records, ("net", "sparsity", "method")):
        head = (net, f"{100 * share:g} %", method, accuracy(members, "dense_accuracy"))
        ran = [record for record in members if record["accuracy"] is not None]
        if not ran:
            rows.append((*head, *failed(members, 6)))
            continue
        rows.append(
            (
                *head,
                accuracy(ran, "accuracy"),
                accuracy(ran, "retrained_accuracy"),
                f"{sum(record['recovered'] for record in ran)} of {len(ran)}",
                f"{statistics.median(record['epochs'] for record in ran):.2f}",
                seconds(ran, "prune_seconds"),
                seconds(ran, "total_seconds"),
            )
        )
    columns = (
        "net", "sparsity", "method", "dense", "pruned", "retrained", "recovered", "epochs", "prune s", "total s",
    )  # fmt: skip
    return Table("Table 1: test accuracy in percent, means; seconds, medians over the seeds", columns, rows)


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: time to prune and to retrain until the accuracy is back",
    plan=Table1,
    key_fields=(
        "net", "method", "seed", "sparsity", "samples", "max_epochs", "patience", "tolerance", "learning_rate",
        "decay", "batch_size", "data_name", "device",
    ),
    cells=cells,
    prepare=prepare,
    run_one=run_one,
    table=table,
    quick={
        "nets": ("dense-mnist",),
        "methods": ("threshold", "feta"),
        "seeds": 1,
        "samples": 2000,
        "epochs": 3,
        "data": "mnist-mini",
        "networks": Path("results/quick/networks"),
        "out": Path("results/quick/table1"),
    },
)  # fmt: skip
