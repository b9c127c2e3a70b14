"""torch's own transformer encoder, which has forms of its own that dense layers alone can take part in.

nested   nn.TransformerEncoder packs padded samples into nested tensors, and gives zeros where they were padded
fused    nn.TransformerEncoderLayer reads the weights of its Linears in one call, and never calls them
"""

from typing import Any

import torch
from torch import Tensor, nn

from feta.inference.base import ForInference


def unpack_(model: nn.Module) -> None:
    """Let no encoder in a model pack its samples; it gives the same, zeros at padded positions included."""
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoder) and getattr(part, "use_nested_tensor", False):
            part.use_nested_tensor = False
            part.layers[-1].register_forward_hook(_zero_padding, with_kwargs=True)


def run_layers_(model: nn.Module) -> None:
    """Have encoder layers call their Linears where one of these is in a form for inference."""
    for part in model.modules():
        changed = any(isinstance(layer, ForInference) for layer in part.children())
        if isinstance(part, nn.TransformerEncoderLayer) and changed:
            part.activation_relu_or_gelu = 0  # neither of the two that the fused call knows


def _zero_padding(layer: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
    """Zeros where torch would have packed the samples: where all padding is at their ends."""
    mask = kwargs.get("src_key_padding_mask")
    if mask is None or kwargs.get("src_mask") is not None or output.ndim != 3 or torch.is_autocast_enabled():
        return output
    padded = mask if mask.dtype == torch.bool else mask != 0
    at_the_end = (padded[:, 1:] >= padded[:, :-1]).all()  # stays a tensor: nothing waits for a GPU
    return output.masked_fill((padded & at_the_end)[..., None], 0.0)
