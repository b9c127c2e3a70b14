"""A budget for the whole network turned into an exact target for each layer.

uniform            every layer has the same share of zeros
global-magnitude   one threshold for all layers: each keeps its part of the largest weights
erk                as many weights as a layer has inputs, outputs and kernel sides (Erdős–Rényi kernel)
sensitivity        least sum over layers of the measured squared change of the network's outputs
bound              least sum over layers of the measured error of the layer × the gain of those after it

The last two need an error–count curve of each layer (allocation.measure), and minimise exactly over its lower
convex hull (allocation.budget), with a quarter of its uniform share for every layer: a bound may see no use
for a layer that nothing can do without.

But for `uniform`, which rounds layer by layer, the number of non-zeros over all layers is that of the share of
all weights together, and no layer is emptied while there are weights enough.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from feta.allocation.budget import Curve, least_error
from feta.allocation.shares import floors_of, keep_one, proportional
from feta.errors import ConfigError, unknown_name
from feta.sparsity import Sparsity, top_k_mask

MEASURED = ("sensitivity", "bound")
ALLOCATIONS = ("uniform", "global-magnitude", "erk", *MEASURED)


def check_allocation(allocation: str) -> str:
    """A known name, or a ConfigError that lists them."""
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation", allocation, ALLOCATIONS)
    return allocation


def allocate(
    weights: Mapping[str, Tensor],
    share: float,
    allocation: str = "uniform",
    curves: Mapping[str, Curve] | None = None,
) -> dict[str, Sparsity]:
    """A target per layer; `curves` are what `sensitivity` and `bound` go by, one for each layer."""
    check_allocation(allocation)
    if allocation == "uniform":
        return {name: Sparsity(share) for name in weights}
    sizes = {name: weight.numel() for name, weight in weights.items()}
    total = Sparsity(share).count(sum(sizes.values()))
    if allocation == "global-magnitude":
        kept = keep_one(_over_one_threshold(weights, total), sizes)
    elif allocation == "erk":
        sides = {name: float(sum(weight.shape)) for name, weight in weights.items()}
        kept = proportional(sides, sizes, total)
    else:
        if curves is None or set(curves) != set(weights):
            got = None if curves is None else sorted(curves)
            raise ConfigError(f"curves must hold each of {sorted(weights)} for '{allocation}', got {got}")
        kept = least_error({name: curves[name] for name in weights}, total, floors_of(sizes, total))
    return {name: Sparsity(nonzeros=kept[name]) for name in weights}


def _over_one_threshold(weights: Mapping[str, Tensor], total: int) -> dict[str, int]:
    magnitudes = torch.cat([weight.detach().reshape(-1).abs().float() for weight in weights.values()])
    parts = top_k_mask(magnitudes, total).split([weight.numel() for weight in weights.values()])
    return {name: int(part.sum()) for name, part in zip(weights, parts, strict=True)}
