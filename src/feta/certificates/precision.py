"""In which precision a network computes, as it is run: certificates know of float32 and float64 alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from feta.errors import ModelError

KNOWN = (torch.float32, torch.float64)


class _Watch(TorchDispatchMode):
    """Looks at the result of every operation, those that a cast of the model's own makes included."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype not in KNOWN:
                kind = str(value.dtype).removeprefix("torch.")
                raise ModelError(
                    f"certify must get networks that compute in float32 or float64, got {func} in {kind}; "
                    "take autocast and casts out of the network"
                )
        return result


@torch.no_grad()
def check_precision(model: nn.Module, example: Tensor) -> None:
    with _Watch():  # type: ignore[no-untyped-call]
        model(example.clone())
