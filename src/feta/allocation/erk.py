"""erk: the Erdős–Rényi kernel rule."""

from typing import ClassVar

from feta.allocation.base import Budget
from feta.allocation.shares import proportional


class Erk:
    """Weights in proportion to a layer's inputs plus outputs plus kernel sides: small layers stay fuller."""

    name: ClassVar[str] = "erk"
    needs_data: ClassVar[bool] = False

    def allocate(self, budget: Budget) -> dict[str, int]:
        sides = {name: float(sum(weight.shape)) for name, weight in budget.weights.items()}
        return proportional(sides, budget.sizes, budget.total)
