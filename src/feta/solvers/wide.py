"""FeTa without a Gram matrix, for layers with too many inputs for one.

The same least-squares problems as solvers.gram, on m_s held rows. With A centred (which minimises over the bias) and
its columns scaled to length one, and K = A A' (m_s, m_s):

    (A'A + rho I)^-1 (A'T + rho D)  =  A' (K + rho I)^-1 T  +  D - A' (K + rho I)^-1 A D

so ADMM's dense step takes products with A and a factor of K, and refits are conjugate gradients. Memory is that of
the rows and of K. What rows that were not held would say is lost.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.solvers.refit import Refit, projected_cg
from feta.solvers.support_admm import Admm, Dense, SupportResult, search, shifted_factor
from feta.sparsity import Pattern

CG_STEPS = 30
COLUMNS = 4096  # of A at a time where K is added up


@dataclass(frozen=True)
class RowsSystem:
    """Rows A (m_s, d_in) as they are; centring and scaling happen inside the products."""

    A: Tensor
    mean: Tensor  # (d_in,): zero where there is no bias
    scale: Tensor  # (d_in, 1): the length of each centred column; one where the data says nothing
    alive: Tensor  # (d_in, 1) bool: whether it says something
    K: Tensor  # (m_s, m_s)

    @classmethod
    def of(cls, A: Tensor, with_bias: bool) -> "RowsSystem":
        mean = A.mean(0) if with_bias else A.new_zeros(A.shape[1])
        lengths, K = [], A.new_zeros(len(A), len(A))
        for start in range(0, A.shape[1], COLUMNS):
            part = A[:, start : start + COLUMNS] - mean[start : start + COLUMNS]
            length = torch.linalg.vector_norm(part, dim=0)
            known = length > 1e-3 * torch.linalg.vector_norm(A[:, start : start + COLUMNS], dim=0)
            part = (part / length.where(known, 1)).where(known, 0)
            K.addmm_(part, part.t())
            lengths.append(length.where(known, 0))
        length = torch.cat(lengths)[:, None]
        return cls(A, mean, length.where(length > 0, 1), length > 0, K)

    def forward(self, X: Tensor) -> Tensor:
        """A X for scaled X (d_in, d_out)."""
        X = X.where(self.alive, 0) / self.scale
        return self.A @ X - self.mean @ X

    def backward(self, Z: Tensor) -> Tensor:
        """A' Z, scaled."""
        back = torch.addmm(torch.outer(self.mean, Z.sum(0)), self.A.t(), Z, beta=-1)
        return (back / self.scale).where(self.alive, 0)

    def support(
        self,
        C: Tensor,
        V: Tensor,
        k: int,
        admm: Admm,
        weights: Tensor | None,
        ridge: float = 0.0,
        pattern: Pattern | None = None,
    ) -> SupportResult:
        """The ridge is left to the refit: it would not leave the factor of K as it is."""
        by_output = 1.0 if weights is None else weights.to(self.A)
        start = (V[: self.A.shape[1]].to(self.A.dtype) * self.scale).where(self.alive, 0)
        right = self._scaled(C) * by_output

        def step(rho: float) -> tuple[Dense, float]:
            L, damping = shifted_factor(self.K, rho)

            def rest(X: Tensor) -> Tensor:
                """rho (A'A + rho I)^-1 X, without the cancellation that a division by rho would show."""
                return X - self.backward(torch.cholesky_solve(self.forward(X), L))

            base = rest(right) / rho
            # In float32 the large part of C leaves an error that one step of refinement removes.
            base = base + rest(right - self.backward(self.forward(base)) - rho * base) / rho
            return (lambda near: base + rest(near)), damping

        return search(step, start * by_output, k, admm, pattern=pattern)

    def swapped(
        self, C: Tensor, V: Tensor, mask: Tensor, weights: Tensor | None, ridge: float, pattern: Pattern | None = None
    ) -> Tensor:
        """The mask as it is: such a layer is never small."""
        return mask

    def refit(
        self,
        C: Tensor,
        mask: Tensor,
        V: Tensor,
        ridge: float,
        start: Tensor | None = None,
        error: float | None = None,
    ) -> Refit:
        """Conjugate gradients from V; the ridge is relative to the mean squared length of A's columns."""
        d_in = self.A.shape[1]
        raw = self.scale.square() + len(self.A) * self.mean[:, None].square()
        added = ridge * raw.where(self.alive, 0).mean() / self.scale.square()
        towards = V[:d_in].to(self.A.dtype) * self.scale
        start, inside = towards.where(mask, 0), mask & self.alive

        def product(X: Tensor) -> Tensor:
            return self.backward(self.forward(X)) + added * X

        found = projected_cg(product, 1 + added[:, 0], self._scaled(C) + added * towards, start, inside, CG_STEPS)
        X = found.where(inside, start).double() / self.scale
        if len(C) == d_in:
            return Refit(X)
        # The bias that is best for X: the mean of the targets less the mean of the outputs.
        bias = C[d_in:] / len(self.A) - (self.mean.double() @ X)[None, :]
        return Refit(torch.cat([X, bias]))

    def _scaled(self, C: Tensor) -> Tensor:
        """The cross terms of the centred, scaled columns."""
        d_in = self.A.shape[1]
        centred = C[:d_in] - torch.outer(self.mean.double(), C[d_in]) if len(C) > d_in else C
        return (centred / self.scale).where(self.alive, 0).to(self.A.dtype)
