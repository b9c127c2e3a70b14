"""Figure 2: accuracy without retraining against the time it takes to prune, with and without refinement.

    prune            labels are never seen
    prune + refine   the survivors are fitted to the dense network's outputs; its time is its own column

A network is pruned once for both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feta.tuning.refine import Refinement, refine
from feta_lab.experiments import Record, key_of
from feta_lab.judge import judge
from feta_lab.reproduce.experiment import Experiment, Table
from feta_lab.reproduce.kept import NAMED, Pruned
from feta_lab.reproduce.plan import PruningPlan
from feta_lab.reproduce.subject import prepare, pruned, subject_of
from feta_lab.reproduce.summary import accuracy, failed, groups, seconds
from feta_lab.workers import Cell


@dataclass(frozen=True)
class Fig2(PruningPlan):
    """One refinement for all methods."""

    refine: tuple[bool, ...] = (False, True)
    passes: int = 3  # of the refinement
    out: Path = Path("results/fig2")

    def __post_init__(self) -> None:
        super().__post_init__()
        Refinement(passes=self.passes)  # looked at now, not in every cell


def cells(plan: Fig2) -> list[Cell]:
    """Refinement innermost: it goes on from what was just pruned."""
    return [
        cell | {"refine": refined, "passes": plan.passes if refined else None}
        for cell in plan.grid()
        for refined in plan.refine
    ]


def run_one(plan: Fig2, cell: Cell) -> Mapping[str, Any]:
    """Prune, or take what the cell before has pruned; refine; judge."""
    subject = subject_of(plan, cell)
    result = _pruned(plan, key_of(cell, NAMED))
    if not cell["refine"]:
        scores = judge(result.model, subject.data, plan.where)
        return _fields(result, scores) | {"refine_seconds": 0.0}
    refined = refine(
        result.model,
        subject.model,
        subject.images,
        masks=result.masks,
        passes=plan.passes,
        n_samples=cell["samples"],
        seed=cell["seed"],
        device=plan.where,
    )
    scores = judge(refined.model, subject.data, plan.where)
    return _fields(result, scores) | {
        "relative_error": None,  # known of the pruned layers, not of the refined ones
        "refine_seconds": refined.report.seconds,
        "loss_before": refined.report.loss_before,
        "loss_after": refined.report.loss_after,
        "stopped": refined.report.stopped,
    }


@functools.lru_cache(maxsize=1)
def _pruned(plan: Fig2, key: tuple[Any, ...]) -> Pruned:
    return pruned(plan, dict(zip(NAMED, key, strict=True)))


def _fields(result: Pruned, scores: Mapping[str, float]) -> dict[str, Any]:
    return {**result.fields, "accuracy": scores["test"], "validation": scores["validation"]}


def table(records: Sequence[Record]) -> Table:
    """A row per network, sparsity and method; the refined network beside the pruned one."""
    rows = []
    for (net, share, method), members in groups(records, ("net", "sparsity", "method")):
        head = (net, f"{100 * share:g} %", method, accuracy(members, "dense_accuracy"))
        ran = [record for record in members if record["accuracy"] is not None]
        if not ran:
            rows.append((*head, *failed(members, 4)))
            continue
        plain, refined = ([r for r in ran if r["refine"] is on] for on in (False, True))
        rows.append(
            (
                *head,
                accuracy(plain, "accuracy"),
                seconds(ran, "prune_seconds"),
                accuracy(refined, "accuracy"),
                seconds(refined, "refine_seconds"),
            )
        )
    columns = ("net", "sparsity", "method", "dense", "pruned", "prune s", "refined", "refine s")
    return Table("Figure 2: test accuracy in percent, means; seconds, medians over the seeds", columns, rows)


EXPERIMENT = Experiment(
    name="fig2",
    title="Figure 2: accuracy without retraining against pruning time",
    plan=Fig2,
    key_fields=(*NAMED, "refine", "passes"),
    cells=cells,
    prepare=prepare,
    run_one=run_one,
    table=table,
    quick={
        "nets": ("dense-mnist",),
        "methods": ("threshold", "feta"),
        "seeds": 1,
        "samples": 2000,
        "data": "mnist-mini",
        "networks": Path("results/quick/networks"),
        "out": Path("results/quick/fig2"),
    },
)
