"""FeTa without a Gram matrix, for layers with too many inputs for one.

The same least-squares problems as solvers.gram, on m_s held rows with m_s of the order of d_in or below it.
With A centred (which minimises over the bias) and its columns scaled to length one, and K = A A' (m_s, m_s):

    (A'A + rho I)^-1 (A'T + rho D)  =  A' (K + rho I)^-1 T  +  D - A' (K + rho I)^-1 A D

so ADMM's dense step takes products with A and a factor of K; refits are conjugate gradients, preconditioned
by the diagonal. Memory is that of the rows and of K. What rows that were not held would say is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feta.problem import Status
from feta.solvers.cholesky import factor
from feta.solvers.conjugate import projected_cg
from feta.solvers.gram import GramSettings
from feta.solvers.masked_refit import Refit
from feta.solvers.support_admm import SupportResult, search

CG_STEPS = 30
COLUMNS = 4096  # of A at a time where K is added up


@dataclass(frozen=True)
class RowsSystem:
    """Rows A (m_s, d_in) as they are; centring and scaling happen inside the products."""

    A: Tensor
    mean: Tensor  # (d_in,): zero where there is no bias
    scale: Tensor  # (d_in,): length of each centred column; one where the data says nothing
    alive: Tensor  # (d_in,) bool
    K: Tensor  # (m_s, m_s)
    with_bias: bool

    @classmethod
    def of(cls, A: Tensor, with_bias: bool) -> RowsSystem:
        mean = A.mean(0) if with_bias else A.new_zeros(A.shape[1])
        lengths, K = [], A.new_zeros(len(A), len(A))
        for start in range(0, A.shape[1], COLUMNS):
            part = A[:, start : start + COLUMNS] - mean[start : start + COLUMNS]
            length = torch.linalg.vector_norm(part, dim=0)
            known = length > 1e-3 * torch.linalg.vector_norm(A[:, start : start + COLUMNS], dim=0)
            part = (part / length.where(known, 1)).where(known, 0)
            K.addmm_(part, part.t())
            lengths.append(length.where(known, 0))
        length = torch.cat(lengths)
        return cls(A, mean, length.where(length > 0, 1), length > 0, K, with_bias)

    def forward(self, X: Tensor) -> Tensor:
        """A X for scaled X (d_in, d_out)."""
        X = X.where(self.alive[:, None], 0) / self.scale[:, None]
        return self.A @ X - self.mean @ X

    def backward(self, Z: Tensor) -> Tensor:
        """A' Z, scaled."""
        back = torch.addmm(torch.outer(self.mean, Z.sum(0)), self.A.t(), Z, beta=-1)
        return (back / self.scale[:, None]).where(self.alive[:, None], 0)

    def support(
        self, C: Tensor, V: Tensor, keep: int, settings: GramSettings, weights: Tensor | None = None
    ) -> SupportResult:
        d_in, dtype = self.A.shape[1], self.A.dtype
        start = (V[:d_in].to(dtype) * self.scale[:, None]).where(self.alive[:, None], 0)
        by_output = 1.0 if weights is None else weights.to(self.A)
        found = search(
            _RowsStep(self, self._scaled(C) * by_output),
            start * by_output,
            keep,
            rho=settings.rho,
            schedule=((0.0, settings.growth),),
            every=settings.every,
            warm_up=6,
            max_iterations=settings.max_iterations,
            relaxation=settings.relaxation,
        )
        bias = found.mask.new_ones(int(self.with_bias), C.shape[1])
        return replace(found, mask=torch.cat([found.mask, bias]))

    def refit(self, C: Tensor, mask: Tensor, V: Tensor, ridge: float) -> Refit:
        """Conjugate gradients from V; the ridge is relative to the mean squared length of A's columns."""
        d_in, dtype = self.A.shape[1], self.A.dtype
        raw = self.scale.square() + len(self.A) * self.mean.square()
        added = (ridge * raw.where(self.alive, 0).mean() / self.scale.square())[:, None]
        start = (V[:d_in].to(dtype) * self.scale[:, None]).where(mask, 0)
        towards = V[:d_in].to(dtype) * self.scale[:, None]
        right = self._scaled(C) + added * towards

        def product(X: Tensor) -> Tensor:
            return self.backward(self.forward(X)) + added * X

        inside = mask & self.alive[:, None]
        found = projected_cg(product, 1 + added[:, 0], right, start, inside, CG_STEPS)
        X = found.where(inside, start).double() / self.scale[:, None]
        if not self.with_bias:
            return Refit(X, Status.OK)
        # The bias that is best for X: the mean of the targets less the mean of the outputs.
        bias = C[d_in:] / len(self.A) - (self.mean.double() @ X)[None, :]
        return Refit(torch.cat([X, bias]), Status.OK)

    def _scaled(self, C: Tensor) -> Tensor:
        """The cross terms of the centred, scaled columns."""
        d_in = self.A.shape[1]
        centred = C[:d_in] - torch.outer(self.mean.double(), C[d_in]) if self.with_bias else C
        return (centred / self.scale[:, None]).where(self.alive[:, None], 0).to(self.A.dtype)


@dataclass(frozen=True)
class _RowsStep:
    """ADMM's dense step through K."""

    system: RowsSystem
    C: Tensor  # scaled

    def at(self, rho: float) -> tuple[Callable[[Tensor], Tensor], float]:
        system = self.system
        shifted = system.K.clone()
        shifted.diagonal().add_(rho)
        L, info = torch.linalg.cholesky_ex(shifted)
        damping = 0.0
        if int(info) != 0:
            found = factor(shifted)
            L, damping = found.L.to(L.dtype), found.damping

        def rest(X: Tensor) -> Tensor:
            """rho (A'A + rho I)^-1 X, without the cancellation that a division by rho would show."""
            return X - system.backward(torch.cholesky_solve(system.forward(X), L))

        base = rest(self.C) / rho
        # In float32 the large part of C leaves an error that one step of refinement removes.
        residual = self.C - system.backward(system.forward(base)) - rho * base
        base = base + rest(residual) / rho
        return (lambda near: base + rest(near)), damping
