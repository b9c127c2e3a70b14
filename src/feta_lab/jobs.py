"""A whole job on a network of the lab: prune it and have it judged."""

from __future__ import annotations

import copy
from typing import Any

from feta.engine.prune import prune
from feta.engine.select import SparsityRequest
from feta_lab.data import DataSet
from feta_lab.judge import judge
from feta_lab.store import Network

ABOUT = ("method", "target_sparsity", "sparsity", "seed", "options", "compensated")
LAYER = ("name", "shape", "nonzeros", "sparsity", "relative_error", "seconds", "activation", "status", "message")


def prune_network(
    network: Network,
    data: DataSet | None,
    sparsity: SparsityRequest,
    method: str,
    *,
    device: str = "cpu",
    **engine: Any,
) -> tuple[Network, dict[str, Any]]:
    """Prune a network of the lab and have it judged.

    network: stays as it is.
    data: for calibration and for the accuracies; None where the method needs no data.
    sparsity, method: as in feta.prune; `engine` are its other options.

    Returns the pruned network, and a summary of the run that is ready for JSON.
    """
    images = None if data is None else data.normalisation.apply(data.train.images, device)
    model = copy.deepcopy(network.model).to(device)
    result = prune(model, images, sparsity, method, device=device, **engine)
    report, refinement = result.report.to_dict(), result.report.refinement
    accuracy = None
    if data is not None:
        accuracy = {"dense": judge(model, data, device), "pruned": judge(result.model, data, device)}
    summary = {key: report[key] for key in (*ABOUT, "seconds", "device", "allocation")}
    summary["layers"] = [{key: layer[key] for key in LAYER} for layer in report["layers"]]
    summary["refinement"] = None if refinement is None else refinement.to_dict()
    summary["accuracy"] = accuracy
    kept = {key: summary[key] for key in ABOUT}
    if refinement is not None:
        kept["refinement"] = {key: summary["refinement"][key] for key in ("passes", "loss")}
    if accuracy is not None:
        kept["dense_accuracy"] = accuracy["dense"]  # what retraining has to come back to
    kept["layers"] = [layer["name"] for layer in summary["layers"]]
    scores = accuracy["pruned"] if accuracy else {}
    return network.with_model(result.model.to("cpu"), pruning=kept, accuracy=scores), summary
