"""sensitivity: weights go where pruning moves the network's outputs most.

E_l(k) = mean over held-out samples of  ||outputs with layer l at k weights - outputs||^2
"""

from typing import ClassVar

from feta.allocation.base import Budget
from feta.allocation.budget import least_error
from feta.allocation.shares import floors_of


class Sensitivity:
    """The least sum over layers of the measured squared change of the network's outputs."""

    name: ClassVar[str] = "sensitivity"
    needs_data: ClassVar[bool] = True

    def allocate(self, budget: Budget) -> dict[str, int]:
        measured = budget.measured.curves(list(budget.weights), "outputs")
        curves = {name: curve.compounded() for name, curve in measured.items()}
        return least_error(curves, budget.total, floors_of(budget.sizes, budget.total))
