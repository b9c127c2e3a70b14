"""The DCA of Algorithm 1: linearise h at U^k, solve the convex rest by Acc-Prox-SVRG, repeat.

    F(V) = (1/m) sum ||rho(A~ V) - B||^2 + lambda * Omega(U)

An exact solve never raises F. The stochastic one can, when the step is too long for the data: then the
iterate is taken back and the step halved. An iterate with fewer non-zeros than are wanted is taken back too,
and lambda halved. The result says with which step and which lambda it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feta.objective.regularised import Regularised
from feta.problem import ActivationStream, Status
from feta.solvers.prox_svrg import FullPass, Svrg, acc_prox_svrg, full_pass


@dataclass(frozen=True)
class DcaResult:
    """Where the iterations ended.

    V: the last accepted iterate, and `last` the full pass at it.
    objective: with the lambda that was used at the end; `settings`: with that step.
    values: F after each accepted iterate, the start included, since lambda last changed.
    status: NOT_CONVERGED when the iterates still moved.
    """

    V: Tensor
    last: FullPass
    objective: Regularised
    settings: Svrg
    values: tuple[float, ...]
    status: Status

    @property
    def nonzeros(self) -> int:
        return int(torch.count_nonzero(self.objective.fit.weights(self.V)))


def dca(
    V: Tensor,
    stream: ActivationStream,
    objective: Regularised,
    settings: Svrg,
    generator: torch.Generator,
    *,
    outer: int,
    least: int = 0,
    tolerance: float = 1e-4,
    start: FullPass | None = None,
) -> DcaResult:
    """At most `outer` iterates from V, fewer when they no longer move.

    least: non-zero weights that no iterate may fall below; V must have them.
    tolerance: the iterations end when V changes by less than this share of its norm.
    start: the full pass at V, where the caller has it.
    """
    here = start if start is not None else full_pass(V, stream, objective.fit)
    values, status = [here.fit + objective.penalise(V)], Status.NOT_CONVERGED
    for _ in range(outer):
        moved = acc_prox_svrg(V, stream, objective, settings, here, generator)
        if int(torch.count_nonzero(objective.fit.weights(moved))) < least:
            objective = replace(objective, strength=objective.strength / 2)
            values = [here.fit + objective.penalise(V)]
            continue
        there = full_pass(moved, stream, objective.fit)
        value = there.fit + objective.penalise(moved)
        if not value <= values[-1] * (1 + 1e-6):
            settings = replace(settings, step=settings.step / 2)
            continue
        change = float(torch.linalg.vector_norm(moved - V) / torch.linalg.vector_norm(V).clamp_min(1e-30))
        V, here = moved, there
        values.append(value)
        if change < tolerance:
            status = Status.OK
            break
    return DcaResult(V, here, objective, settings, tuple(values), status)
