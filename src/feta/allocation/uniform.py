"""uniform: every layer has the same share of zeros."""

from typing import ClassVar

from feta.allocation.base import Budget
from feta.sparsity import Sparsity


class Uniform:
    """Every layer has the same share of zeros, rounded layer by layer."""

    name: ClassVar[str] = "uniform"
    needs_data: ClassVar[bool] = False

    def allocate(self, budget: Budget) -> dict[str, int]:
        return {name: Sparsity(budget.share).count(size) for name, size in budget.sizes.items()}
