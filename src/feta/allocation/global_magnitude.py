"""global-magnitude: one threshold for all layers."""

from typing import ClassVar

import torch

from feta.allocation.base import Budget
from feta.allocation.shares import keep_one
from feta.sparsity import top_k_mask


class GlobalMagnitude:
    """One threshold for all layers: each keeps its part of the network's largest weights."""

    name: ClassVar[str] = "global-magnitude"
    needs_data: ClassVar[bool] = False

    def allocate(self, budget: Budget) -> dict[str, int]:
        flat = torch.cat([weight.detach().reshape(-1).abs().float() for weight in budget.weights.values()])
        parts = top_k_mask(flat, budget.total).split(list(budget.sizes.values()))
        kept = {name: int(part.sum()) for name, part in zip(budget.weights, parts, strict=True)}
        return keep_one(kept, budget.sizes)
