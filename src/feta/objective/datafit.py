"""The data fit of a layer and its split into a difference of convex functions (section 3.2).

    fit(V) = sum ||rho(A~ V) - B||_F^2 = g(V) - h(V)
    g(V)   = sum rho(Z)^2 + B^2            h(V) = sum 2 B rho(Z)            Z = A~ V

g and h are convex because rho is convex and non-negative and B >= 0; for the identity h is linear and B
may have any sign. Sums, not means, so that chunks add up. V (d_in [+ 1], d_out) holds the bias in its last
row when `with_bias`; A~ is A with a column of ones, which is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.objective.rectifier import Rectifier


@dataclass(frozen=True)
class DataFit:
    rectifier: Rectifier
    with_bias: bool

    def outputs(self, V: Tensor, A: Tensor) -> Tensor:
        """Z = A~ V, the pre-activations."""
        return torch.addmm(V[-1], A, V[:-1]) if self.with_bias else A @ V

    def pull_back(self, A: Tensor, R: Tensor) -> Tensor:
        """A~' R: a gradient with respect to Z turned into one with respect to V."""
        return torch.cat([A.t() @ R, R.sum(0, keepdim=True)]) if self.with_bias else A.t() @ R

    def value(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return (self.rectifier.value(self.outputs(V, A)) - B).square().sum()

    def gradient(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        Z = self.outputs(V, A)
        return self.pull_back(A, 2 * (self.rectifier.value(Z) - B) * self.rectifier.slope(Z))

    def g(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return self.rectifier.value(self.outputs(V, A)).square().sum() + B.square().sum()

    def h(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return (2 * B * self.rectifier.value(self.outputs(V, A))).sum()

    def g_slope(self, Z: Tensor) -> Tensor:
        """The gradient of g with respect to Z."""
        return 2 * self.rectifier.value(Z) * self.rectifier.slope(Z)

    def h_slope(self, Z: Tensor, B: Tensor) -> Tensor:
        """A subgradient of h with respect to Z."""
        return 2 * B * self.rectifier.slope(Z)
