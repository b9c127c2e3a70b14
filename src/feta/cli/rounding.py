"""What it costs to store a model's weights rounded: --dtype."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from feta.cli.console import size
from feta.cli.subject import Subject, accuracy
from feta.files.lossy import Smaller, weight_error, with_rounded_weights


def cost(subject: Subject, model: nn.Module, exact_bytes: int, dtype: Smaller, device: str) -> dict[str, Any]:
    """Accuracy with rounded weights, where there is data to judge by, their relative error, and the exact file."""
    rounded = with_rounded_weights(copy.deepcopy(model), dtype)
    found = {"dtype": dtype, "weight_error": weight_error(model, rounded), "exact_bytes": exact_bytes}
    return found | {"accuracy": accuracy(rounded, subject, device) if subject.data is not None else None}


def told(rounding: Mapping[str, Any], accuracy: Any, written: int) -> str:
    """What storing the weights rounded costs and saves, in a line."""
    said = f"weights rounded to {rounding['dtype']}: off by {100 * rounding['weight_error']:.2g} %"
    if rounding["accuracy"] is not None:
        said += f", test accuracy {accuracy['pruned']['test']:.2f} % → {rounding['accuracy']['test']:.2f} %"
    return f"{said}, file {size(rounding['exact_bytes'])} → {size(written)}"
