"""One pruning, measured: what the user waited, how each layer ended, and the memory it took."""

import gc
import math
import resource
from collections import Counter
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import feta
from feta.calibration.model import clock
from feta.engine.recipe import EFFORTS
from feta_lab.experiments.plan import parse_method


def measured_prune(
    model: nn.Module, data: Tensor, method: str, sparsity: float, **given: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """The pruned model, and the fields that a record says of the run.

    method: a label such as feta or feta:quality=best; or an effort, such as default, or default:alps with a method of
        one's own in its first stage. `given` is passed on to feta.prune.
    """
    effort, _, first = method.partition(":")
    if effort in EFFORTS:
        how: dict[str, Any] = {name: value for name, value in given.items() if name != "allocation"}
        how |= {"effort": effort} | ({"method": first} if first else {})
    else:
        name, options = parse_method(method)
        how = {"method": name, "options": options, **given}
    device = next(model.parameters()).device
    gc.collect()  # another run's garbage is not this one's time or memory
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    started = clock(device)
    result = feta.prune(model, data, sparsity, **how)
    seconds = clock(device) - started
    layers = result.report.layers
    fields = {
        "seconds": seconds,
        "reported_seconds": result.report.seconds,
        "peak_bytes": peak_bytes(device),
        "model_bytes": sum(weight.numel() * weight.element_size() for weight in model.parameters()),
        "options": dict(result.report.options),
        "parts": dict(result.report.parts),
        "stages": [asdict(stage) for stage in result.report.stages],
        "zeros": result.report.sparsity,
        "layer_count": len(layers),
        "statuses": dict(Counter(str(layer.status) for layer in layers)),
        "not_ok": {layer.name: f"{layer.status}: {layer.message}" for layer in layers if layer.status != "ok"},
        "relative_error": {layer.name: finite(layer.relative_error) for layer in layers},
    }
    return result.model, fields


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def shares(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def tell(text: str) -> None:
    print(text, flush=True)


def peak_bytes(device: torch.device) -> int:
    """The most memory a GPU held during the run; on CPUs the most the process ever had, earlier runs included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def finite(value: float | None) -> float | str | None:
    """A number as it is; one that JSON does not have as a word."""
    return value if value is None or math.isfinite(value) else str(value)
