"""What it costs to store a model's weights rounded: --dtype."""

import copy
from typing import Any

from torch import nn

from feta.cli.subject import Subject, accuracy
from feta.files.lossy import Smaller, weight_error, with_rounded_weights


def cost(subject: Subject, model: nn.Module, exact_bytes: int, dtype: Smaller, device: str) -> dict[str, Any]:
    """Accuracy with rounded weights, where there is data to judge by, their relative error, and the exact file."""
    rounded = with_rounded_weights(copy.deepcopy(model), dtype)
    found = {"dtype": dtype, "weight_error": weight_error(model, rounded), "exact_bytes": exact_bytes}
    return found | {"accuracy": accuracy(rounded, subject, device) if subject.data is not None else None}
