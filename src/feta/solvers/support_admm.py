"""Which weights to keep: l0-constrained least squares by ADMM.

    minimise  1/2 tr(W' H W) - tr(C' W) + r/2 ||(W - W0)_S||_F^2   subject to    ||W_S||_0 <= k, layer-wide

H (d, d) is a Gram matrix, C (d, d_out) its cross terms with any targets, S the rows that may be pruned, W0 where
the ridge pulls to. In variables that give H a unit diagonal, with a sparse copy D, a dual V and a penalty rho:

    W <- (H + rho I)^-1 (C - V + rho D)      D <- P(W + V / rho)      V <- V + rho (W - D)

P keeps the k largest, or those that a pattern keeps, which changes nothing else. Every few iterations rho is raised,
the more the more of the support has changed, until the support rests. Rows outside S, the bias, are minimised over
exactly: ADMM runs on the Schur complement of their block. A new Cholesky factor for each rho costs less than the
eigenvectors of H, which would serve every rho.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from feta.errors import ConfigError, check_fields, check_range
from feta.problem import Status
from feta.ranks import ALONE, Ranks
from feta.solvers.columns import Columns
from feta.solvers.refit import factor
from feta.sparsity import Pattern

Watch = Callable[..., None]  # takes iteration=, rho= and changed=, the share of k
Dense = Callable[[Tensor], Tensor]  # D - V / rho -> W = (H + rho I)^-1 (C + rho (D - V / rho))
Step = Callable[[float], tuple[Dense, float]]  # rho -> the dense step, and the damping it needed


@dataclass(frozen=True)
class Admm:
    """How the penalty grows, and when the search ends; the defaults are those of ALPS."""

    rho: float = 0.1  # the first penalty
    # (share, factor): rho grows by the first factor for which more than this share of k has changed.
    schedule: tuple[tuple[float, float], ...] = ((0.1, 1.3), (0.005, 1.2), (0.0, 1.1))
    every: int = 3  # iterations between two looks at the support
    warm_up: int = 6  # iterations before the support can come to rest
    # rho before it can, in units of the scaled H's mean eigenvalue, which is one: a support that does not move
    # while rho is small has not been asked to.
    rest: float = 0.0
    max_iterations: int = 300
    relaxation: float = 1.0  # in (0, 2); 1.6 takes a third fewer iterations to as good a support

    def __post_init__(self) -> None:
        check_fields(self, "> 0", "rho")
        check_fields(self, ">= 1", "every", "max_iterations")
        check_fields(self, "in (0, 2)", "relaxation")


@dataclass(frozen=True)
class SupportResult:
    """The support, the sparse copy, and how the search went."""

    mask: Tensor  # (d, d_out) bool; rows that may not be pruned are True
    D: Tensor  # (d, d_out), zero off the support; rows that may not be pruned are optimal for it
    iterations: int
    rho: float  # the last
    status: Status
    damping: float = 0.0  # the most that a factor needed, relative to its diagonal


def support_admm(
    H: Tensor,
    C: Tensor,
    W0: Tensor,
    k: int,
    admm: Admm = Admm(),  # noqa: B008 - frozen
    *,
    prunable: int | None = None,
    column_weights: Tensor | None = None,
    ridge: float = 0.0,
    dtype: torch.dtype = torch.float32,
    watch: Watch | None = None,
    pattern: Pattern | None = None,
    ranks: Ranks = ALONE,
) -> SupportResult:
    """A support of k weights for the layer, started at W0.

    prunable: how many of the first rows may be pruned and are counted; all by default.
    column_weights: (d_out,) factors of the columns' errors, not squared: which column deserves the weights.
    ridge: r, relative to the mean of H's diagonal over these rows; it pulls to W0.
    dtype: of the iterations; the scaling and the elimination of the other rows are float64.
    watch: called at every look at the support.
    pattern: which weights may stay together; None: any.
    ranks: processes that have the same H, C and W0, and share the columns, unless a pattern ties them.

    Raises a ConfigError for shapes that do not fit or a negative k.
    """
    d = len(H)
    if H.shape != (d, d) or len(C) != d or W0.shape != C.shape:
        shapes = f"H {tuple(H.shape)}, C {tuple(C.shape)}, W0 {tuple(W0.shape)}"
        raise ConfigError(f"support_admm must have H (d, d) and C, W0 (d, d_out), got {shapes}")
    check_range("support_admm", ">= 0", k=k)
    W0 = W0[:prunable]
    H, C, p = H.double(), C.double(), len(W0)
    coupling, free = H[p:, :p], C[p:]
    reduced, right = H[:p, :p].clone(), C[:p]  # the one copy: all that follows is done in place
    diagonal = reduced.diagonal().clone()
    if p < d:
        block = factor(H[p:, p:])
        coupling, free = block.solve(coupling), block.solve(free)
        reduced.addmm_(H[:p, p:], coupling, alpha=-1)
        right = right - coupling.t() @ C[p:]
    # Inputs that are dead, or constant beside a bias, come last: what float32 products leave of them is noise.
    alive = (reduced.diagonal() > (1e-6 if p < d else 0) * diagonal)[:, None]
    reduced.masked_fill_(~alive, 0).masked_fill_(~alive.t(), 0)
    added = ridge * float(diagonal.mean())
    reduced.diagonal().add_(added)
    scale = reduced.diagonal()[:, None].where(alive, 1).sqrt()  # scaled weights are scale * W
    reduced = reduced.div_(scale.t()).div_(scale).to(dtype)
    right = ((right + added * W0) / scale).where(alive, 0).to(dtype)
    start = (W0.double() * scale).where(alive, 0).to(dtype)
    weights = (C.new_ones(C.shape[1]) if column_weights is None else column_weights).to(dtype)
    right.mul_(weights)
    share = Columns(C.shape[1], ranks if pattern is None else ALONE)

    def step(rho: float) -> tuple[Dense, float]:
        L, damping = shifted_factor(reduced, rho)
        many = admm.every * C.shape[1] >= d  # columns, so that the inverse pays
        solve = torch.cholesky_inverse(L).matmul if many else partial(torch.cholesky_solve, input2=L)
        own = share.take(right)
        return (lambda near: share.each(solve, torch.add(own, near, alpha=rho))), damping

    found = search(step, share.take(start.mul_(weights)), k, admm, watch, pattern, share)
    found = replace(found, mask=share.whole(found.mask), D=share.whole(found.D))
    D = (found.D / weights).double() / scale
    others = found.mask.new_ones(d - p, C.shape[1])
    return replace(found, mask=torch.cat([found.mask, others]), D=torch.cat([D, free - coupling @ D]))


def search(
    dense: Step,
    start: Tensor,
    k: int,
    admm: Admm,
    watch: Watch | None = None,
    pattern: Pattern | None = None,
    share: Columns | None = None,
) -> SupportResult:
    """The iterations themselves, in scaled variables, for all columns or a process's share."""
    share = share or Columns(start.shape[1])
    keep = share.top_k if pattern is None else pattern.mask
    # The sparse copy starts dense, at W0: no weight is lost before H has had its say.
    reflected, dual, rho = start, torch.zeros_like(start), admm.rho  # dual is V / rho
    mask = looked_at = keep(start.abs(), k)
    rested, iteration, damping = False, 0, 0.0
    while iteration < admm.max_iterations:
        step, needed = dense(rho)
        damping = max(damping, needed)
        for _ in range(min(admm.every, admm.max_iterations - iteration)):
            # Y = V / rho + relaxed W + (1 - relaxation) D, and D is reflected + dual.
            Y = dual.mul_(2 - admm.relaxation).add_(step(reflected), alpha=admm.relaxation)
            Y.add_(reflected, alpha=1 - admm.relaxation)
            mask = keep(Y.abs(), k)
            dual = Y.masked_fill(mask, 0)
            reflected = Y.sub_(dual, alpha=2)  # D - V / rho
            iteration += 1
        del step  # an inverse is as large as H: the next one must not meet it
        changed = share.total(int((mask != looked_at).sum())) / max(k, 1)
        looked_at = mask
        if watch is not None:
            watch(iteration=iteration, rho=rho, changed=changed)
        rested = changed == 0 and iteration >= admm.warm_up and rho >= admm.rest
        if rested:
            break
        growth = next((factor for share, factor in admm.schedule if changed > share), admm.schedule[-1][1])
        dual, rho = dual.div_(growth), rho * growth
        reflected = reflected.where(mask, -dual)
    status = Status.DAMPED if damping else Status.OK if rested else Status.NOT_CONVERGED
    return SupportResult(mask, reflected.where(mask, 0), iteration, rho, status, damping)


def shifted_factor(H: Tensor, rho: float) -> tuple[Tensor, float]:
    """L with L L' = H + rho I in H's own precision, and the damping where that took the ladder in float64."""
    shifted = H.clone()
    shifted.diagonal().add_(rho)
    L, info = torch.linalg.cholesky_ex(shifted)
    if int(info) == 0:
        return L, 0.0
    found = factor(shifted)
    return found.L.to(H.dtype), found.damping
