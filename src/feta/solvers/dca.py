"""The paper's Algorithms 1 and 2: DCA, with each convex problem solved by Acc-Prox-SVRG.

    F(V) = (1/m) [ g(V) - h(V) ] + lambda * Omega(U),      U = V without its bias row

Algorithm 1 takes the slope C of h at V^k, minimises (1/m) [ g(V) - <C, V> ] + lambda * Omega(U), and repeats.
Algorithm 2 does that in S stages, each with a full gradient at its anchor x~ and one pass in minibatches:

    u = grad g_batch(y) - grad g_batch(x~) + (full gradient - C) / m
    x' = prox_{eta lambda Omega}(y - eta u);   y = x' + beta (x' - x)

An exact solve never raises F. The stochastic one can, when the step is too long for the data: then the
iterate is taken back and the step halved. An iterate with fewer non-zeros than are wanted is taken back too,
and lambda halved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feta.calibration.stream import minibatches
from feta.errors import ConfigError, check_range
from feta.objective.datafit import DataFit
from feta.objective.penalty import Regularised
from feta.problem import ActivationStream, Status


@dataclass(frozen=True)
class Svrg:
    """Hyper-parameters of Algorithm 2: S, rows in a minibatch, eta, beta; the defaults are the appendix's."""

    stages: int = 3
    batch: int = 200
    step: float = 1e-3
    momentum: float = 0.95

    def __post_init__(self) -> None:
        check_range("Svrg", "> 0", stages=self.stages, batch=self.batch, step=self.step)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"Svrg.momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True)
class FullPass:
    """What one pass over the data gives at V: means over the rows of the fit and of the gradients of g and h."""

    fit: float
    g_gradient: Tensor
    h_gradient: Tensor


def full_pass(V: Tensor, stream: ActivationStream, fit: DataFit) -> FullPass:
    """The fit and the gradients of g and h, added up in float64."""
    total, rows = 0.0, 0
    G, C = (torch.zeros_like(V, dtype=torch.float64) for _ in range(2))
    for A, B in stream.chunks():
        Z = fit.outputs(V, A)
        total += float(fit.error(Z, B))
        G += fit.pull_back(A, fit.g_slope(Z))
        C += fit.pull_back(A, fit.h_slope(Z, B))
        rows += len(A)
    return FullPass(total / rows, (G / rows).to(V.dtype), (C / rows).to(V.dtype))


def acc_prox_svrg(
    V: Tensor,
    stream: ActivationStream,
    objective: Regularised,
    settings: Svrg,
    start: FullPass,
    generator: torch.Generator,
) -> Tensor:
    """The next DCA iterate from V; `start` is the full pass at V and holds the slope of h."""
    fit, anchor, at_anchor = objective.fit, V, start
    for stage in range(settings.stages):
        if stage > 0:
            at_anchor = full_pass(anchor, stream, fit)
        drift = at_anchor.g_gradient - start.h_gradient
        x = y = anchor
        for A, _ in minibatches(stream, settings.batch, generator):
            # Both gradients share the batch, so that their difference needs one product with A'.
            change = fit.g_slope(fit.outputs(y, A)) - fit.g_slope(fit.outputs(anchor, A))
            u = drift + fit.pull_back(A, change) / len(A)
            after = objective.prox(y - settings.step * u, settings.step)
            x, y = after, after + settings.momentum * (after - x)
        anchor = x
    return anchor


@dataclass(frozen=True)
class DcaResult:
    """Where the iterations ended: at V, with the lambda of `objective` and the step of `settings`.

    last: the full pass at V.
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
    """At most `outer` iterates from V, fewer when V changes by less than the tolerance times its norm.

    least: non-zero weights that no iterate may fall below; V must have them.
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
