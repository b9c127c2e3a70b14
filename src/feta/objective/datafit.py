"""The data fit of a layer, its split into a difference of convex functions, and a bound by least squares.

    fit(V) = sum ||rho(Z) - B||_F^2 = g(V) - h(V),      Z = A~ V
    g(V)   = sum rho(Z)^2 + B^2            h(V) = sum 2 B rho(Z)                          (section 3.2)

g and h are convex because rho is convex and non-negative and B >= 0; for a linear layer h is linear and B may have
any sign. Sums, not means, so that chunks add up. V (d_in [+ 1], d_out) holds the bias in its last row when
`with_bias`; A~ is A with a column of ones, which is never formed. For the ReLU, with Z_k = A~ V_k at some V_k,

    fit(V) <= ||A~ V - T||_F^2,      T = B where B > 0, min(Z_k, 0) elsewhere

The bound is tight at V_k but for outputs that have died (B > 0, Z_k <= 0): there it asks for B again, which can
revive them. The slope of h asks for Z_k there, which is tight but leaves them dead. For other activations

    T = Z_k - rho'(Z_k) (rho(Z_k) - B) / L^2      with L >= |rho'|

a step of Gauss and Newton. That is no bound: a solver must see for itself whether it helps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.objective.activation import Activation, Softplus


@dataclass(frozen=True)
class DataFit:
    """The squared error after the activation.

    rho: the activation, or a smooth stand-in for it.
    with_bias: whether the last row of V is the bias.
    """

    rho: Activation | Softplus
    with_bias: bool

    def outputs(self, V: Tensor, A: Tensor) -> Tensor:
        """Z = A~ V, the pre-activations, in the precision of the rows."""
        V = V.to(A.dtype)
        return torch.addmm(V[-1], A, V[:-1]) if self.with_bias else A @ V

    def weights(self, V: Tensor) -> Tensor:
        """U: V without its bias row."""
        return V[:-1] if self.with_bias else V

    def pull_back(self, A: Tensor, R: Tensor) -> Tensor:
        """A~' R: a gradient with respect to Z turned into one with respect to V."""
        return torch.cat([A.t() @ R, R.sum(0, keepdim=True)]) if self.with_bias else A.t() @ R

    def error(self, Z: Tensor, B: Tensor) -> Tensor:
        """||rho(Z) - B||_F^2, added up in float64."""
        return torch.linalg.vector_norm(self.rho(Z) - B, dtype=torch.float64).square()  # type: ignore[no-any-return]

    def value(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return self.error(self.outputs(V, A), B)

    def gradient(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        Z = self.outputs(V, A)
        return self.pull_back(A, self.g_slope(Z) - self.h_slope(Z, B))

    def g(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return self.rho(self.outputs(V, A)).square().sum() + B.square().sum()

    def h(self, V: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return (2 * B * self.rho(self.outputs(V, A))).sum()

    def g_slope(self, Z: Tensor) -> Tensor:
        """The gradient of g with respect to Z."""
        return 2 * self.rho(Z) * self.rho.slope(Z)

    def h_slope(self, Z: Tensor, B: Tensor) -> Tensor:
        """A subgradient of h with respect to Z."""
        return 2 * B * self.rho.slope(Z)

    def targets(self, Z: Tensor, B: Tensor, *, revive: bool = True) -> Tensor:
        """T of the bound at Z; without `revive` dead outputs stay where they are. A linear layer's T is B."""
        if self.rho is Activation.LINEAR:
            return B
        if isinstance(self.rho, Activation) and self.rho is not Activation.RELU:
            return Z - self.rho.slope(Z) * (self.rho(Z) - B) / self.rho.steepest**2
        active = B > 0 if revive else (B > 0) & (Z > 0)
        return torch.where(active, B, Z.clamp_max(0))
