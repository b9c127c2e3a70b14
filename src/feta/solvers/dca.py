"""The DCA of Algorithm 1: linearise h at U^k, solve the convex rest by Acc-Prox-SVRG, repeat.

    F(V) = (1/m) sum ||rho(A~ V) - B||^2 + Omega(U)

An exact solve never raises F. The stochastic one can, when the step is too long for the data: then the
step is halved and the iterate taken back, and the result says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feta.objective.datafit import DataFit
from feta.objective.penalty import Penalty
from feta.problem import ActivationStream, Status
from feta.solvers.prox_svrg import FullPass, Svrg, acc_prox_svrg, full_pass


@dataclass(frozen=True)
class DcaResult:
    V: Tensor
    last: FullPass  # at V
    objectives: tuple[float, ...]  # F after each accepted iterate, the start included
    settings: Svrg  # with the step that was used at the end
    status: Status


def dca(
    V: Tensor,
    stream: ActivationStream,
    fit: DataFit,
    penalty: Penalty,
    settings: Svrg,
    generator: torch.Generator,
    *,
    outer: int,
    tolerance: float = 1e-4,
    start: FullPass | None = None,
) -> DcaResult:
    """At most `outer` iterates from V, fewer when they no longer move."""
    here = start if start is not None else full_pass(V, stream, fit)
    objectives = [here.fit + _penalty(V, penalty, fit)]
    converged = False
    for _ in range(outer):
        moved = acc_prox_svrg(V, stream, fit, penalty, settings, here, generator)
        there = full_pass(moved, stream, fit)
        value = there.fit + _penalty(moved, penalty, fit)
        if not value <= objectives[-1] * (1 + 1e-6):
            settings = replace(settings, step=settings.step / 2)
            continue
        change = float(torch.linalg.vector_norm(moved - V) / torch.linalg.vector_norm(V).clamp_min(1e-30))
        V, here = moved, there
        objectives.append(value)
        if change < tolerance:
            converged = True
            break
    return DcaResult(V, here, tuple(objectives), settings, Status.OK if converged else Status.NOT_CONVERGED)


def _penalty(V: Tensor, penalty: Penalty, fit: DataFit) -> float:
    return float(penalty.value(V[:-1] if fit.with_bias else V))
