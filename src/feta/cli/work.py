"""Whole jobs of the command line: prune a network or retrain a pruned one, and have it judged."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from feta.cli.subject import Subject, accuracy
from feta.engine.prune import prune
from feta.engine.select import SparsityRequest
from feta.tuning.retrain import retrain

SUMMARY = (
    "method",
    "target_sparsity",
    "sparsity",
    "seconds",
    "device",
    "seed",
    "options",
    "compensated",
    "allocation",
)
KEPT = ("method", "target_sparsity", "sparsity", "seed", "options", "compensated")
LAYER = (
    "name",
    "shape",
    "nonzeros",
    "sparsity",
    "relative_error",
    "seconds",
    "activation",
    "status",
    "message",
)


def prune_subject(
    subject: Subject, sparsity: SparsityRequest, method: str, *, device: str = "cpu", **options: Any
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """Prune a network and judge it; `options` are those of feta.prune.

    Returns the pruned model, the run's summary for people and programs, and what its file remembers of it.
    """
    rows = None if subject.data is None else subject.rows("train", device)[0]
    model = copy.deepcopy(subject.model).to(device)
    result = prune(model, rows, sparsity, method, device=device, **options)
    report = result.report.to_dict()
    summary: dict[str, Any] = {key: report[key] for key in SUMMARY}
    summary["layers"] = [{key: layer[key] for key in LAYER} for layer in report["layers"]]
    refinement = result.report.refinement
    summary["refinement"] = None if refinement is None else refinement.to_dict()
    kept = {key: summary[key] for key in KEPT}
    if refinement is not None:
        kept["refinement"] = {key: summary["refinement"][key] for key in ("passes", "loss")}
    summary["accuracy"] = None
    if subject.data is not None:
        scores = {
            "dense": accuracy(model, subject, device),
            "pruned": accuracy(result.model, subject, device),
        }
        summary["accuracy"] = scores
        kept["dense_accuracy"] = scores["dense"]  # what retraining has to come back to
    kept["layers"] = [layer["name"] for layer in summary["layers"]]
    return result.model.to("cpu"), summary, kept


def retrain_subject(
    subject: Subject, *, goal: float | None = None, device: str = "cpu", **options: Any
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """Retrain a pruned network and judge it; `options` are those of feta.retrain.

    goal: validation accuracy to come back to; by default that of the network before it was pruned, where its
        file says so. Without one, training goes on to the end of its budget.

    Returns the retrained model, the run's summary, and what its file remembers of it.
    """
    model = copy.deepcopy(subject.model).to(device)
    result = retrain(
        model,
        subject.rows("train", device),
        validation=subject.rows("validation", device),
        goal=dense_validation(subject.pruning) if goal is None else goal,
        device=device,
        **options,
    )
    scores = {
        "pruned": accuracy(model, subject, device),
        "retrained": accuracy(result.model, subject, device),
    }
    summary = {**result.report.to_dict(), "accuracy": scores}
    about = {key: summary[key] for key in ("epochs", "recovered", "goal", "tolerance", "stopped", "seed")}
    return result.model.to("cpu"), summary, {**(subject.pruning or {}), "retraining": about}


def dense_validation(pruning: Mapping[str, Any] | None) -> float | None:
    """Validation accuracy before pruning, as the network's file remembers it."""
    return ((pruning or {}).get("dense_accuracy") or {}).get("validation")
