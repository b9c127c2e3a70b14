"""Which weights to keep: l0-constrained least squares by ADMM.

    minimise  1/2 tr(W' H W) - tr(C' W) + r/2 ||(W - T)_P||_F^2    subject to    ||W_P||_0 <= k, layer-wide

H (d, d) is a Gram matrix, C (d, d_out) its cross terms with any targets, P the rows that may be pruned,
T where the ridge pulls to; r is the ridge times the mean of H's diagonal over P. With the ridge in H and C,
in variables that give H a unit diagonal, with a sparse copy D, a dual V and a growing penalty rho:

    W <- (H + rho I)^-1 (C - V + rho D)      D <- top_k(W + V / rho)      V <- V + rho (W - D)

Every few iterations rho is raised, the more the larger the share of the k kept weights that changed in
between, until the support rests. Rows outside P (the bias) are minimised over exactly: ADMM runs on the
Schur complement of their block.

With Y = W + V / rho, D is Y on the support and V / rho is Y off it, so Y and the mask are all there is to
carry, and an iteration is one product with (H + rho I)^-1 and one selection. A Cholesky factor and its
inverse for each rho take 10 ms at d = 784, as do products with the eigenvectors of H, which take 50 ms
to find there and 870 ms at d = 2048 (60 ms for a factor); hence no eigenvectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from feta.errors import ConfigError
from feta.problem import Status
from feta.solvers.cholesky import Factor, factor
from feta.sparsity import top_k_mask

Schedule = tuple[tuple[float, float], ...]  # (more than this share of k changed, factor for rho)
Watch = Callable[[int, float, float], None]  # (iteration, rho, share of k that changed)


@dataclass(frozen=True)
class SupportResult:
    """The support, the sparse and the dense copy, and how the search went."""

    mask: Tensor  # (d, d_out) bool; rows that may not be pruned are True
    D: Tensor  # (d, d_out) sparse copy; its other rows are optimal for it
    W: Tensor  # (d, d_out) dense copy
    iterations: int
    rho: float
    changes: tuple[float, ...]  # share of k that changed between two looks at the support
    status: Status
    damping: float = 0.0  # the most that a factor needed, relative to its diagonal


def support_admm(
    H: Tensor,
    C: Tensor,
    W0: Tensor,
    k: int,
    *,
    penalised_rows: Tensor | None = None,
    column_weights: Tensor | None = None,
    ridge: float = 0.0,
    toward: Tensor | None = None,
    rho: float = 0.1,
    schedule: Schedule = ((0.1, 1.3), (0.005, 1.2), (0.0, 1.1)),
    every: int = 3,
    warm_up: int = 6,
    max_iterations: int = 300,
    relaxation: float = 1.0,
    dtype: torch.dtype = torch.float32,
    watch: Watch | None = None,
) -> SupportResult:
    """A support of k weights for the layer, started at W0.

    penalised_rows: (d,) bool, the rows that may be pruned and are counted; all by default.
    column_weights: (d_out,) factors of the columns' errors, not squared: which column deserves the weights.
    ridge: relative to the mean of H's diagonal over these rows; pulls to `toward` (d, d_out), or to zero.
    warm_up: the support can come to rest only after this many iterations.
    relaxation: of W towards the last D, in (0, 2); 1.6 takes a third fewer iterations to as good a support.
    dtype: of the iterations; the scaling and the elimination of the other rows are float64.
    """
    _check(H, C, W0, k, penalised_rows, rho, every)
    if not 0 < relaxation < 2:
        raise ConfigError(f"support_admm.relaxation must be in (0, 2), got {relaxation}")
    rows = torch.ones(len(H), dtype=torch.bool, device=H.device) if penalised_rows is None else penalised_rows
    problem = _Reduced.of(H, C, rows, ridge, toward, dtype)
    weights = torch.ones(C.shape[1], device=C.device) if column_weights is None else column_weights
    weights = weights.to(dtype)
    found = search(
        GramStep(problem.H, problem.C.mul_(weights), explicit=every * C.shape[1] >= len(H)),
        problem.scaled(W0).to(dtype).mul_(weights),
        k,
        rho=rho,
        schedule=schedule,
        every=every,
        warm_up=warm_up,
        max_iterations=max_iterations,
        relaxation=relaxation,
        watch=watch,
    )
    return replace(
        found,
        mask=problem.whole(found.mask),
        D=problem.unscaled(found.D / weights),
        W=problem.unscaled(found.W / weights),
    )


class DenseStep(Protocol):
    """All that the iterations need to know of H and C."""

    def at(self, rho: float) -> tuple[Callable[[Tensor], Tensor], float]:
        """D - V / rho -> W = (H + rho I)^-1 (C + rho (D - V / rho)), and the damping it needed."""
        ...


def search(
    dense: DenseStep,
    start: Tensor,
    k: int,
    *,
    rho: float,
    schedule: Schedule,
    every: int,
    warm_up: int,
    max_iterations: int,
    relaxation: float = 1.0,
    watch: Watch | None = None,
) -> SupportResult:
    """The iterations themselves, in scaled variables."""
    # The sparse copy starts dense, at W0: no weight is lost before H has had its say.
    W = reflected = start
    dual = torch.zeros_like(W)  # V / rho
    mask = looked_at = top_k_mask(W.abs(), k)
    changes: list[float] = []
    status, iteration, damping = Status.NOT_CONVERGED, 0, 0.0
    while iteration < max_iterations:
        step, needed = dense.at(rho)
        damping = max(damping, needed)
        for _ in range(min(every, max_iterations - iteration)):
            W = step(reflected)
            # Y = V / rho + relaxed W + (1 - relaxation) D, and D is reflected + dual.
            Y = dual.mul_(2 - relaxation).add_(W, alpha=relaxation).add_(reflected, alpha=1 - relaxation)
            mask = top_k_mask(Y.abs(), k)
            reflected = Y.where(mask, -Y)  # D - V / rho
            dual = Y.sub_(reflected).mul_(0.5)  # Y off the support, 0 on it
            iteration += 1
        del step  # an inverse is as large as H: the next one must not meet it
        changes.append(int((mask != looked_at).sum()) / max(k, 1))
        looked_at = mask
        if watch is not None:
            watch(iteration, rho, changes[-1])
        if changes[-1] == 0 and iteration >= warm_up:
            status = Status.OK
            break
        growth = next((factor for share, factor in schedule if changes[-1] > share), schedule[-1][1])
        dual, rho = dual.div_(growth), rho * growth
        reflected = reflected.where(mask, -dual)
    status = Status.DAMPED if damping else status
    return SupportResult(mask, reflected.where(mask, 0), W, iteration, rho, tuple(changes), status, damping)


def _check(
    H: Tensor, C: Tensor, W0: Tensor, k: int, penalised_rows: Tensor | None, rho: float, every: int
) -> None:
    d = len(H)
    if H.shape != (d, d) or len(C) != d or W0.shape != C.shape:
        shapes = f"H {tuple(H.shape)}, C {tuple(C.shape)}, W0 {tuple(W0.shape)}"
        raise ConfigError(f"support_admm must have H (d, d) and C, W0 (d, d_out), got {shapes}")
    if penalised_rows is not None and (penalised_rows.shape != (d,) or penalised_rows.dtype != torch.bool):
        got = f"{tuple(penalised_rows.shape)} {penalised_rows.dtype}"
        raise ConfigError(f"support_admm.penalised_rows must be ({d},) bool, got {got}")
    for name, value, least in (("k", k, 0), ("every", every, 1)):
        if value < least:
            raise ConfigError(f"support_admm.{name} must be >= {least}, got {value}")
    if not rho > 0:
        raise ConfigError(f"support_admm.rho must be > 0, got {rho}")


@dataclass(frozen=True)
class GramStep:
    """The dense copy from a Cholesky factor of H + rho I for each rho."""

    H: Tensor
    C: Tensor
    explicit: bool  # many columns: products with the inverse beat two triangular solves

    def at(self, rho: float) -> tuple[Callable[[Tensor], Tensor], float]:
        L, info = torch.linalg.cholesky_ex(self._shifted(rho))
        damping = 0.0
        if int(info) != 0:
            found = factor(self._shifted(rho))
            L, damping = found.L.to(L.dtype), found.damping
        if not self.explicit:
            return (lambda near: torch.cholesky_solve(torch.add(self.C, near, alpha=rho), L)), damping
        inverse = torch.cholesky_inverse(L)
        return (lambda near: inverse @ torch.add(self.C, near, alpha=rho)), damping

    def _shifted(self, rho: float) -> Tensor:
        shifted = self.H.clone()
        shifted.diagonal().add_(rho)
        return shifted


@dataclass(frozen=True)
class _Reduced:
    """The problem in the penalised rows alone, scaled to a unit diagonal."""

    H: Tensor  # (p, p)
    C: Tensor  # (p, d_out)
    scale: Tensor  # (p, 1): scaled weights are scale * W
    alive: Tensor  # (p,) bool
    rows: Tensor  # (d,) bool: the penalised ones
    coupling: Tensor  # (f, p) H_FF^-1 H_FP
    free: Tensor  # (f, d_out) H_FF^-1 C_F

    @classmethod
    def of(
        cls,
        H: Tensor,
        C: Tensor,
        rows: Tensor,
        ridge: float,
        toward: Tensor | None,
        dtype: torch.dtype,
    ) -> _Reduced:
        H, C = H.double(), C.double()
        inside, outside = rows.nonzero()[:, 0], (~rows).nonzero()[:, 0]
        cross = H[outside[:, None], inside]
        block = _block_factor(H[outside[:, None], outside])
        coupling, free = block.solve(cross), block.solve(C[outside])
        reduced = H[inside[:, None], inside]  # the one copy: all that follows is done in place
        diagonal = reduced.diagonal().clone()
        reduced.addmm_(cross.t(), coupling, alpha=-1)
        right = C[inside].addmm_(coupling.t(), C[outside], alpha=-1)
        # The data says nothing about inputs that are dead, or constant beside a bias: they come last, and
        # what float32 products leave of a constant one must not be scaled up.
        alive = reduced.diagonal() > (1e-6 if len(cross) else 0) * diagonal
        reduced[~alive] = 0
        reduced[:, ~alive] = 0
        added = ridge * float(diagonal.mean())
        reduced.diagonal().add_(added)
        if toward is not None:
            right = right + added * toward[rows]
        scale = reduced.diagonal().where(alive, 1).sqrt()
        right = (right / scale[:, None]).where(alive[:, None], 0)
        reduced.div_(scale).div_(scale[:, None])
        return cls(reduced.to(dtype), right.to(dtype), scale[:, None], alive, rows, coupling, free)

    def scaled(self, W: Tensor) -> Tensor:
        return (W[self.rows].double() * self.scale).where(self.alive[:, None], 0)

    def unscaled(self, W: Tensor) -> Tensor:
        """All rows of the layer for scaled penalised ones: the others are the optimal ones."""
        W = W.double() / self.scale
        return self.whole(W, self.free - self.coupling @ W)

    def whole(self, values: Tensor, others: Tensor | bool = True) -> Tensor:
        full = values.new_zeros(len(self.rows), values.shape[1])
        full[self.rows], full[~self.rows] = values, others
        return full


def _block_factor(block: Tensor) -> Factor:
    return Factor(block, 0.0, Status.OK) if block.numel() == 0 else factor(block)
