"""Whole jobs on networks of the lab: prune one and have it judged."""

from __future__ import annotations

import copy
from typing import Any

from feta.lab.data import DataSet
from feta.lab.judge import judge
from feta.lab.store import Network
from feta.pruning import prune
from feta.selection import SparsityRequest

LAYER_KEYS = (
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


def prune_network(
    network: Network,
    data: DataSet | None,
    sparsity: SparsityRequest,
    method: str,
    *,
    device: str = "cpu",
    **engine: Any,
) -> tuple[Network, dict[str, Any]]:
    """The pruned network and the run's summary, ready for JSON; `engine` are options of feta.prune."""
    images = None if data is None else data.normalisation.apply(data.train.images, device)
    model = copy.deepcopy(network.model).to(device)
    result = prune(model, images, sparsity, method, device=device, **engine)
    report = result.report.to_dict()
    accuracy = None
    if data is not None:
        accuracy = {"dense": judge(model, data, device), "pruned": judge(result.model, data, device)}
    summary = {
        "method": report["method"],
        "target_sparsity": report["target_sparsity"],
        "sparsity": report["sparsity"],
        "seconds": report["seconds"],
        "device": report["device"],
        "seed": report["seed"],
        "options": report["options"],
        "compensated": list(report["compensated"]),
        "layers": [{key: layer[key] for key in LAYER_KEYS} for layer in report["layers"]],
        "accuracy": accuracy,
    }
    kept = {
        key: summary[key]
        for key in ("method", "target_sparsity", "sparsity", "seed", "options", "compensated")
    }
    kept["layers"] = [layer["name"] for layer in summary["layers"]]
    pruned = network.with_model(
        result.model.to("cpu"), pruning=kept, accuracy=accuracy["pruned"] if accuracy else {}
    )
    return pruned, summary
