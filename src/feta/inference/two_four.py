"""A Linear whose weights are 2:4, by torch's own product for GPUs that have one (capability 8.0 and newer).

    of every four consecutive inputs of an output at most two are not zero

Held are the two values of each group, and two places of 2 bits: 9/16 of the dense bytes, on every device alike. What
torch makes of them (cuSPARSELt or CUTLASS, each with a layout of its own) is made at the first call and held beside.
"""

import functools
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feta.inference.base import ForLinear

KINDS = (torch.float16, torch.bfloat16)
OUTPUTS, INPUTS = 32, 64  # torch takes multiples of these, whichever library it has


class TwoFourLinear(ForLinear):
    """y = W x + bias by sparse tensor cores; torch fills the rows of x up to a multiple of eight."""

    values: Tensor  # (out, in / 2)
    places: Tensor  # (out, in / 8) uint8: of two groups, the first in the lower half

    def __init__(self, layer: nn.Linear) -> None:
        values, places = encode(layer.weight.detach())
        super().__init__(layer, values=values, places=places)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        halves = torch.stack([self.places & 15, self.places >> 4], -1).flatten(1)  # (out, groups)
        places = torch.stack([halves & 3, halves >> 2], -1).long()  # (out, groups, 2)
        weight = self.values.new_zeros(self.out_features, self.in_features // 4, 4)
        return weight.scatter_(2, places, self.values.view(places.shape)).flatten(1), self.bias

    def plan(self) -> Any:
        if not works(self.values.device, self.values.dtype):
            return None
        with torch.inference_mode(False), torch.no_grad():  # it outlives the call that it is made in
            return packed(self.dense()[0])

    def held(self) -> Iterable[Tensor]:
        parts = (getattr(self._plan, name, None) for name in ("packed", "meta"))
        return [part for part in parts if isinstance(part, Tensor)]

    def fast(self, x: Tensor, plan: Any) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if len(rows) == 0 or x.dtype != self.values.dtype:
            return F.linear(x, *self.dense())
        return F.linear(rows.contiguous(), plan, self.bias).contiguous().view(*x.shape[:-1], self.out_features)


def is_two_four(weight: Tensor) -> bool:
    """Whether a matrix (out, in) is 2:4 along the inputs, in a shape that torch takes."""
    if weight.ndim != 2 or weight.shape[0] % OUTPUTS or weight.shape[1] % INPUTS or not weight.numel():
        return False
    return bool(((weight != 0).reshape(len(weight), -1, 4).sum(-1, dtype=torch.uint8) <= 2).all())


def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Values and places of a 2:4 matrix: the first and the last that is not zero of each group."""
    groups = weight.reshape(len(weight), -1, 4)
    used = (groups != 0).to(torch.uint8)
    first, last = used.argmax(-1), 3 - used.flip(-1).argmax(-1)
    # One alone stands beside a zero: behind it, or before it where nothing is behind.
    alone = first == last
    first, last = first.where(~alone | (first < 3), 0), last.where(~alone | (first == 3), 3)
    values = groups.gather(2, torch.stack([first, last], -1)).flatten(1)
    halves = (first | last << 2).to(torch.uint8)
    return values, halves[:, ::2] | halves[:, 1::2] << 4


def packed(weight: Tensor) -> Tensor:
    """torch's own form of a 2:4 matrix. Its warning that this is a prototype is silenced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.sparse.to_sparse_semi_structured(weight.contiguous())
    made.fuse_transpose_cusparselt = True  # outputs as rows, as a Linear gives them, without a copy
    return made


@functools.cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch can do it here. Tried: what builds of torch and generations of GPUs can do differs."""
    if device.type != "cuda" or dtype not in KINDS or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.tensor([0, 1, 0, -2, 3, 0, 0, 0], device=device, dtype=dtype).tile(OUTPUTS, INPUTS // 8)
        x = torch.arange(3 * INPUTS, device=device).remainder(5).to(dtype).view(3, INPUTS)
        bias = torch.arange(OUTPUTS, device=device).to(dtype)
        try:
            found = F.linear(x, packed(weight), bias), F.linear(x, packed(weight))
            return torch.equal(found[0], F.linear(x, weight, bias)) and torch.equal(found[1], F.linear(x, weight))
        except Exception:  # a prototype: what it raises where it cannot do it is not documented
            return False
