"""Which calls of a running network read a weight: the one place that knows torch's operators by name.

Layers are seen by the operator that reads their weight, not by their module: a module that pads its input first, a
weight used in several places and a functional call are all seen as they are.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from feta.layers import Operator

_NAMES = {  # operator -> its arguments in order
    "linear": ("input", "weight", "bias"),
    "addmm": ("bias", "input", "weight"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    ),
}
ATTENTION = {  # arguments of F.multi_head_attention_forward and their places
    **{name: place for place, name in enumerate(("query", "key", "value"))},
    **{"in_proj_weight": 5, "in_proj_bias": 6, "out_proj_weight": 11, "out_proj_bias": 12},
}


class Reading(NamedTuple):
    """A call that reads a weight."""

    weight: Tensor
    input: Tensor
    operator: Operator
    bias: Tensor | None = None


def reading_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading | None:
    """The weight and input of an operator's call; None for every other function."""
    name = name_of(func)
    if name not in _NAMES:
        return None
    given = {**dict(zip(_NAMES[name], args, strict=False)), **kwargs}
    weight, x = given.get("weight", given.get("mat2")), given.get("input", given.get("mat1"))
    if not isinstance(weight, Tensor) or not isinstance(x, Tensor):
        return None
    spatial, bias = weight.ndim - 2 if name.startswith("conv") else 0, given.get("bias")
    if not spatial:
        return Reading(weight, x, Operator(transposed=name == "addmm"), bias)
    stride, dilation = (_each(given.get(key, 1), spatial) for key in ("stride", "dilation"))
    padding = given.get("padding", 0)
    padding = padding if isinstance(padding, str) else _each(padding, spatial)
    return Reading(weight, x, Operator(spatial, stride, padding, dilation, given.get("groups", 1)), bias)


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name  # an attribute, such as .T


def attention(mode: TorchFunctionMode, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """nn.MultiheadAttention's function with its two projections called as operators, so that the mode sees them."""
    named = {name: kwargs[name] if name in kwargs else args[place] for name, place in ATTENTION.items()}
    query, width = named["query"], named["out_proj_weight"].shape[1]
    instead = {"out_proj_weight": torch.eye(width, dtype=query.dtype, device=query.device), "out_proj_bias": None}
    places: dict[int, Any] = {place: instead[name] for name, place in ATTENTION.items() if name in instead}
    rest: Any = [places.get(place, value) for place, value in enumerate(args)]
    given: Any = {key: instead.get(key, value) for key, value in kwargs.items()}
    mixed, weights = F.multi_head_attention_forward(*rest, **given)
    with mode:
        if named["in_proj_weight"] is not None and query is named["key"] is named["value"]:
            F.linear(query, named["in_proj_weight"], named["in_proj_bias"])
        return F.linear(mixed, named["out_proj_weight"], named["out_proj_bias"]), weights


def _each(value: Any, spatial: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple | list | torch.Size) else (value,)
    return tuple(int(v) for v in (values * spatial if len(values) == 1 else values))
