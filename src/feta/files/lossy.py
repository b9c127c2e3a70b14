"""Weights in fewer bits than they were trained in: smaller files at a loss, only where it is asked for.

float16, bfloat16: every weight rounded to the nearest; relative error at most 2^-11 and 2^-8
int8: symmetric, per output channel (the first dimension):  q = round(w / scale),  scale = max |w| / 127,
      absolute error at most scale / 2; the scales are kept in float32

Matrices and kernels alone; biases, norms and other vectors stay as they are. Zeros stay zeros. Loading gives the
weights back in their own dtype.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from feta.errors import ConfigError, FileError
from feta.files.plain import shortened

Smaller = Literal["float16", "bfloat16", "int8"]
LEVELS = 127


def check(dtype: str | None) -> None:
    if dtype is not None and dtype not in get_args(Smaller):
        raise ConfigError(f"save.dtype must be one of {', '.join(get_args(Smaller))}, or None, got {dtype!r}")


def lessen(tensors: Mapping[str, Tensor], dtype: Smaller) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to store, and the dtypes that the changed ones had."""
    stored: dict[str, Tensor] = {}
    had: dict[str, str] = {}
    for name, tensor in tensors.items():
        small = torch.int8 if dtype == "int8" else torch.float16 if dtype == "float16" else torch.bfloat16
        if tensor.ndim < 2 or not tensor.is_floating_point() or tensor.element_size() <= small.itemsize:
            stored[name] = tensor
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise ConfigError(f"save.dtype must go with finite weights, got NaN or infinity in '{name}'")
        had[name] = str(tensor.dtype).removeprefix("torch.")
        if small == torch.int8:
            if _scale(name) in tensors:
                raise FileError(f"tensor names must not end in .scale of another tensor, got {_scale(name)}")
            stored[name], stored[_scale(name)] = _rounded(tensor)
        else:
            stored[name] = tensor.to(small)
            if not bool(torch.isfinite(stored[name]).all()):
                raise ConfigError(
                    f"save.dtype must hold all weights, got {dtype}, too small for '{name}'; bfloat16 does"
                )
    return stored, had


def regain(stored: dict[str, Tensor], had: Mapping[str, str], where: str) -> dict[str, Tensor]:
    """The tensors in the dtypes they had. Raises FileError where one or its scales are not there."""
    tensors = dict(stored)
    for name, kind in had.items():
        dtype, tensor = getattr(torch, str(kind), None), tensors.get(name)
        if not isinstance(dtype, torch.dtype) or tensor is None:
            raise FileError(
                f"{where}: tensor {shortened(name)} must be there to become {shortened(kind)}, got neither"
            )
        if tensor.dtype == torch.int8:
            scale = tensors.pop(_scale(name), torch.empty(0))
            if scale.shape != tensor.shape[:1]:
                raise FileError(f"{where}: tensor '{name}' must have a scale per row, got {tuple(scale.shape)}")
            tensors[name] = (tensor.to(scale.dtype) * _column(scale, tensor)).to(dtype)
        else:
            tensors[name] = tensor.to(dtype)
    return tensors


def with_rounded_weights(model: nn.Module, dtype: Smaller) -> nn.Module:
    """The model, changed in place, with the weights that come back out of a file of this dtype."""
    stored, had = lessen({name: tensor.cpu() for name, tensor in model.state_dict().items()}, dtype)
    model.load_state_dict(regain(stored, had, "weights"))
    return model


def weight_error(model: nn.Module, other: nn.Module) -> float:
    """||W - V||_F / ||W||_F over all tensors of the two models that rounding may change."""
    theirs = other.state_dict()
    pairs = [(w.double(), theirs[name].double()) for name, w in model.state_dict().items() if w.ndim >= 2]
    off, size = sum(float((w - v).square().sum()) for w, v in pairs), sum(float(w.square().sum()) for w, _ in pairs)
    return (off / size) ** 0.5 if size else 0.0


def _rounded(tensor: Tensor) -> tuple[Tensor, Tensor]:
    most = tensor.double().abs().flatten(1).amax(1) if tensor.numel() else torch.zeros(len(tensor))
    # A row of zeros, or of numbers too small for float32, has the scale 1 and stays or becomes zero.
    scale = (most / LEVELS).float()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (tensor.double() / _column(scale, tensor)).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def _column(scale: Tensor, tensor: Tensor) -> Tensor:
    return scale.reshape(-1, *[1] * (tensor.ndim - 1))


def _scale(name: str) -> str:
    return f"{name}.scale"
