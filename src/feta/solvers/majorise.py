"""The ReLU objective as least squares with moving targets (FeTa on the Gram matrix).

    F(V) = (1/m) ||rho(A~ V) - B||^2  <=  (1/m) ||A~ V - T||^2,     T = B where B > 0, min(Z, 0) elsewhere

with Z = A~ V_k. The bound is tight at V_k wherever no active output has died (B > 0 but Z <= 0). For those
the convex bound asks for B again, which can revive them but is not tight; the DC slope of Algorithm 1 asks
for Z, which is tight but leaves them dead. H = A~' A~ is fixed: a step needs only A~' T, one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.statistics import complete
from feta.problem import Activation, LayerProblem
from feta.solvers.masked_refit import Refit, masked_refit


@dataclass(frozen=True)
class Step:
    """One pass at V: the objective there, and the cross terms of the next least-squares problem."""

    objective: float  # F(V)
    C: Tensor  # (d_in [+ 1], d_out) float64: sums over rows, like H
    target_squares: (
        Tensor  # (d_out,) float64: sum of T^2 per output, so that ||A~V - T||^2 follows from H and C
    )
    rows: int


def retarget(problem: LayerProblem, V: Tensor, *, revive: bool = True) -> Step:
    """F at V and A~' T for the targets that V gives; linear layers have T = B."""
    has_bias, relu = problem.bias is not None, problem.activation is Activation.RELU
    C = torch.zeros(V.shape, dtype=torch.float64, device=V.device)
    squares = torch.zeros(V.shape[1], dtype=torch.float64, device=V.device)
    total, rows = torch.zeros((), dtype=torch.float64, device=V.device), 0
    for A, B in problem.rows.chunks():
        v = V.to(A.dtype)
        Z = torch.addmm(v[-1], A, v[:-1]) if has_bias else A @ v
        total += (problem.activation(Z) - B).square().sum(dtype=torch.float64)
        T = _targets(Z, B, revive) if relu else B
        C[: A.shape[1]] += A.t() @ T
        if has_bias:
            C[-1] += T.sum(0, dtype=torch.float64)
        squares += T.square().sum(0, dtype=torch.float64)
        rows += len(A)
    return Step(float(total) / rows, complete(C), squares, rows)


def _targets(Z: Tensor, B: Tensor, revive: bool) -> Tensor:
    below = Z.clamp_max(0)
    active = B > 0 if revive else (B > 0) & (Z > 0)
    return torch.where(active, B, below)


@dataclass(frozen=True)
class RefitPath:
    """Refits on a support, each accepted only when it lowers the objective."""

    V: Tensor
    objectives: tuple[float, ...]
    refit: Refit


def refit_on_support(
    problem: LayerProblem,
    H: Tensor,
    mask: Tensor,
    V: Tensor,
    *,
    rounds: int,
    ridge: float,
    tolerance: float = 1e-4,
) -> RefitPath:
    """min F over weights on the mask, from V: re-target, solve every column exactly, repeat."""
    V = V.double() * torch.cat([mask, mask.new_ones(len(V) - len(mask), V.shape[1])])
    step = retarget(problem, V)
    objectives, revive = [step.objective], True
    refit = masked_refit(H, step.C, mask, ridge=ridge, toward=V)
    for _ in range(rounds):
        after = retarget(problem, refit.V, revive=revive)
        if after.objective > objectives[-1]:
            if not revive:
                break
            # The convex bound was not tight: some outputs had died. The DC slope is, so it cannot fail.
            revive = False
            step = retarget(problem, V, revive=False)
        else:
            gain = 1 - after.objective / max(objectives[-1], 1e-300)
            V, step = refit.V, after
            objectives.append(after.objective)
            if gain < tolerance:
                break
        refit = masked_refit(H, step.C, mask, ridge=ridge, toward=V)
    return RefitPath(V, tuple(objectives), refit)
