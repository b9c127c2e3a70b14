"""Which inputs of a layer to give up, when all that are left are refitted to the layer's own outputs.

    error(R) = min over V with V_R = 0 of  ||A~ (V - W~) D||^2 + r ||(V - W~)_K D||^2      K: the inputs that are left
             = tr(D W_R' (P_RR)^-1 W_R D) - r ||W_R D||^2       with P = (A~'A~ + r I)^-1

D weighs the outputs. Inputs go in units (a channel is a block of rows, one for each place of the kernel), the
cheapest first, as in optimal brain surgeon with whole inputs for weights: what goes is made up for by what stays,

    U <- U - P_:R (P_RR)^-1 U_R,      P <- P - P_:R (P_RR)^-1 P_R:      from U = W~ on

so that every step's cost is exact. A unit may be read by several layers: its cost is the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.solvers.refit import factor

RIDGE = 1e-3  # of the mean of H's diagonal
AT_ONCE = 64  # one in so many of the units that are left goes before the others are looked at again


@dataclass
class Reader:
    """A layer that reads the units, as it stands with those that are gone."""

    P: Tensor  # (d, d) float64, the inverse of the Gram matrix over the inputs that are left
    U: Tensor  # (d, d_out) float64, the refitted weights, their outputs weighed; a bias is the last row
    rows: Tensor  # (units, width), the inputs of each unit
    spared: Tensor  # (units,) r ||W_R D||^2: the ridge is for weights that stay

    @classmethod
    def of(cls, H: Tensor, W: Tensor, rows: Tensor, weights: Tensor | None = None, ridge: float = RIDGE) -> "Reader":
        """H (d, d) and W (d, d_out), the bias their last row if there is one; weights (d_out,) of the outputs."""
        U = W.double() if weights is None else W.double() * weights.double()
        found = factor(H, ridge)
        return cls(found.inverse(), U.clone(), rows, found.damping * U[rows].square().sum((1, 2)))

    def costs(self, left: Tensor) -> Tensor:
        """What each of the units that are left would cost, if it went alone."""
        rows = self.rows[left]
        U = self.U[rows]  # (left, width, d_out)
        blocks = self.P[rows[:, :, None], rows[:, None, :]]
        solved: Tensor = U / blocks if rows.shape[1] == 1 else torch.linalg.solve(blocks, U)
        return (U * solved).sum((1, 2)) - self.spared[left]

    def remove(self, units: Tensor) -> float:
        """Let units go, refit the rest, and say what that costs."""
        gone = self.rows[units].flatten()
        L = torch.linalg.cholesky(self.P[gone[:, None], gone])
        across, lost = (torch.linalg.solve_triangular(L, X[gone], upper=False) for X in (self.P, self.U))
        self.U -= across.t() @ lost
        self.P -= across.t() @ across
        self.U[gone] = 0
        return max(0.0, float(lost.square().sum() - self.spared[units].sum()))


def eliminate(readers: Sequence[Reader], least: int = 1, at_once: int = AT_ONCE) -> tuple[list[int], list[float]]:
    """All units but `least` in the order in which they go, and the error after each of them."""
    left = torch.arange(len(readers[0].rows), device=readers[0].rows.device)
    order: list[int] = []
    errors: list[float] = []
    total = 0.0
    while len(left) > least:
        costs = sum(reader.costs(left) for reader in readers)
        assert isinstance(costs, Tensor)
        count = min(max(1, len(left) // at_once), len(left) - least)
        cheapest = costs.argsort(stable=True)[:count]
        step = sum(reader.remove(left[cheapest]) for reader in readers)
        # Those that go together share the cost of their step.
        errors += [total + step * (index + 1) / count for index in range(count)]
        order += left[cheapest].tolist()
        total += step
        stays = torch.ones_like(left, dtype=torch.bool)
        stays[cheapest] = False
        left = left[stays]
    return order, errors
