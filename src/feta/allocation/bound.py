"""bound: weights go where a layer's own error, times the gain of the layers after it, is largest.

    E_l(k) = g_l * root of the mean over held-out samples of  ||rho(z_l(k)) - rho(z_l)||^2

g_l is the product of the operator norms of all layers that run after l. For layers in a chain with functions of
slope at most 1 between them, the sum of E_l bounds how far the outputs move. A bound may not assume that
errors are independent, so norms are added, not squares.
"""

import math
from typing import ClassVar

from feta.allocation.base import Budget
from feta.allocation.budget import Curve, least_error
from feta.allocation.shares import floors_of


class Bound:
    """The least sum over layers of the layer's measured error times the gain of the layers after it."""

    name: ClassVar[str] = "bound"
    needs_data: ClassVar[bool] = True

    def allocate(self, budget: Budget) -> dict[str, int]:
        probe, gains = budget.measured, budget.measured.gains()
        curves = {}
        for name, curve in probe.curves(list(budget.weights), "response").items():
            errors = tuple(gains[name] * math.sqrt(error) for error in curve.errors)
            curves[name] = Curve(curve.counts, errors).compounded()
        return least_error(curves, budget.total, floors_of(budget.sizes, budget.total))
