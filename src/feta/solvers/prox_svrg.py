"""Acc-Prox-SVRG, Algorithm 2 of the paper, for one linearised problem of the DCA:

    minimize over V   (1/m) [ g(V) - <C, V> ] + lambda * Omega(U),      U = V without its bias row

    for s = 1 … S:   full gradient at x~;   for every minibatch:
        u = grad g_batch(y) - grad g_batch(x~) + (full gradient - C) / m
        x' = prox_{eta lambda Omega}(y - eta u);   y = x' + beta (x' - x)

C is a slope of h and does not change inside. One inner loop is one pass over the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.stream import minibatches
from feta.errors import ConfigError, check_range
from feta.objective.datafit import DataFit
from feta.objective.regularised import Regularised
from feta.problem import ActivationStream


@dataclass(frozen=True)
class Svrg:
    """Hyper-parameters of Algorithm 2; the defaults are the appendix's.

    stages: S, how many full gradients.
    batch: rows in a minibatch.
    step: eta.
    momentum: beta.
    """

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
            y = after + settings.momentum * (after - x)
            x = after
        anchor = x
    return anchor
