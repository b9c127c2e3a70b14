"""Cholesky factors with a damping ladder: trouble is met step by step and always reported.

A Gram matrix of dead or collinear inputs is singular. The ladder starts at the damping that was asked
for, relative to the mean of the diagonal, and climbs tenfold until the factor exists, in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.errors import ModelError
from feta.problem import Status


@dataclass(frozen=True)
class Factor:
    """L with L L' = H + damping * I, and what it took to get it."""

    L: Tensor
    damping: float  # what was added to the diagonal
    status: Status

    def solve(self, C: Tensor) -> Tensor:
        """(H + damping I)^-1 C."""
        return torch.cholesky_solve(C.to(self.L.dtype), self.L)

    def inverse(self) -> Tensor:
        return torch.cholesky_inverse(self.L)


def factor(H: Tensor, relative_damping: float = 0.0) -> Factor:
    """The factor of H + damping I, with the least damping on the ladder for which it exists."""
    H = H.double()
    scale, relative = float(H.diagonal().mean()) or 1.0, relative_damping
    for step in range(12):
        if step > 0:
            relative = max(relative * 10, 1e-12)
        shifted = H.clone()
        shifted.diagonal().add_(relative * scale)
        L, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0 and bool(torch.isfinite(L.sum())):
            return Factor(L, relative * scale, Status.OK if step == 0 else Status.DAMPED)
    raise ModelError(f"a {len(H)} x {len(H)} Gram matrix has no Cholesky factor even with damping {relative:g}")
