"""Whole jobs of the command line: prune a network or retrain a pruned one, and judge the result.

Both return the new model, a summary of the run that is ready for JSON, and what the model's file remembers of it.
"""

import copy
import json
from typing import Any

from torch import nn

from feta.cli.subject import Subject, accuracy
from feta.engine.prune import prune
from feta.engine.select import SparsityRequest
from feta.tuning.retrain import retrain

KEPT = ("method", "target_sparsity", "sparsity", "seed", "options", "compensated")
Done = tuple[nn.Module, dict[str, Any], dict[str, Any]]


def prune_subject(
    subject: Subject, sparsity: SparsityRequest, method: str, *, device: str = "cpu", **options: Any
) -> Done:
    """Prune a copy of a network and judge it, where there is data; `options` are those of feta.prune."""
    rows = None if subject.data is None else subject.rows("train", device)[0]
    model = copy.deepcopy(subject.model).to(device)
    result = prune(model, rows, sparsity, method, device=device, **options)
    summary = json.loads(result.report.to_json())
    for layer in summary["layers"]:
        del layer["stats"]  # for people who look into a solver
    kept = {key: summary[key] for key in KEPT} | {"layers": [layer["name"] for layer in summary["layers"]]}
    if summary["refinement"] is not None:
        kept["refinement"] = {key: summary["refinement"][key] for key in ("passes", "loss")}
    summary["accuracy"] = None
    if subject.data is not None:
        scores = {"dense": accuracy(model, subject, device), "pruned": accuracy(result.model, subject, device)}
        summary["accuracy"] = scores
        kept["dense_accuracy"] = scores["dense"]  # what retraining has to come back to
    return result.model.to("cpu"), summary, kept


def retrain_subject(subject: Subject, *, goal: float | None = None, device: str = "cpu", **options: Any) -> Done:
    """Retrain a copy of a pruned network and judge it; `options` are those of feta.retrain.

    goal: the validation accuracy to come back to; by default that of the network before it was pruned, if its
        file says so. Without a goal, training goes on to the end of its budget.
    """
    pruning = subject.pruning or {}
    if goal is None:
        goal = (pruning.get("dense_accuracy") or {}).get("validation")
    model = copy.deepcopy(subject.model).to(device)
    rows, held_out = subject.rows("train", device), subject.rows("validation", device)
    result = retrain(model, rows, validation=held_out, goal=goal, device=device, **options)
    scores = {"pruned": accuracy(model, subject, device), "retrained": accuracy(result.model, subject, device)}
    summary = {**result.report.to_dict(), "accuracy": scores}
    about = {key: summary[key] for key in ("epochs", "recovered", "goal", "tolerance", "stopped", "seed")}
    return result.model.to("cpu"), summary, {**pruning, "retraining": about}
