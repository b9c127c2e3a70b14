"""A budget for the whole network turned into an exact target for each layer.

uniform            every layer has the same share of zeros
global-magnitude   one threshold for all layers: each keeps its part of the largest weights
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from feta.errors import unknown_name
from feta.sparsity import Sparsity, top_k_mask

ALLOCATIONS = ("uniform", "global-magnitude")


def allocate(weights: Mapping[str, Tensor], share: float, allocation: str = "uniform") -> dict[str, Sparsity]:
    """A target per layer; the number of non-zeros over all layers is exact for every allocation."""
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation", allocation, ALLOCATIONS)
    if allocation == "uniform":
        return {name: Sparsity(share) for name in weights}
    sizes = [weight.numel() for weight in weights.values()]
    magnitudes = torch.cat([weight.detach().reshape(-1).abs().float() for weight in weights.values()])
    mask = top_k_mask(magnitudes, Sparsity(share).count(sum(sizes)))
    kept = [int(part.sum()) for part in mask.split(sizes)]
    return {name: Sparsity(nonzeros=k) for name, k in zip(weights, kept, strict=True)}
