"""The paper's Algorithms 1 and 2: DCA, with each convex problem solved by Acc-Prox-SVRG, and a search for lambda.

    F(V) = (1/m) [ g(V) - h(V) ] + lambda * Omega(U),      U = V without its bias row

Algorithm 1 takes the slope C of h at V^k, minimises (1/m) [ g(V) - <C, V> ] + lambda * Omega(U), and repeats.
Algorithm 2 does that in S stages, each with a full gradient at its anchor x~ and one pass in minibatches:

    u = grad g_batch(y) - grad g_batch(x~) + (full gradient - C) / m
    x' = prox_{eta lambda Omega}(y - eta u);   y = x' + beta (x' - x)

An exact solve never raises F. The stochastic one can, when the step is too long for the data: then the iterate is
taken back and the step halved. An iterate with fewer non-zeros than are wanted is taken back too, and lambda halved.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feta.calibration.stream import minibatches
from feta.errors import DataError
from feta.objective.penalty import Penalty, Regularised
from feta.problem import ActivationStream, LayerProblem, Status
from feta.sparsity import top_k_mask

TOLERANCE = 1e-4  # the iterations end when V changes by less than this share of its norm


@dataclass(frozen=True)
class FullPass:
    """What one pass over the data gives at V: means over the rows of the fit and of the gradients of g and h."""

    fit: float
    g_gradient: Tensor
    h_gradient: Tensor


@dataclass(frozen=True)
class Dca:
    """The two algorithms on the rows of a layer; S, the minibatch, eta and beta are the appendix's by default."""

    rows: ActivationStream
    objective: Regularised
    generator: torch.Generator
    stages: int = 3
    batch: int = 200
    step: float = 1e-3
    momentum: float = 0.95

    def at(self, strength: float) -> "Dca":
        """The same with another lambda."""
        return replace(self, objective=replace(self.objective, strength=strength))

    def full_pass(self, V: Tensor) -> FullPass:
        """The fit and the gradients of g and h, added up in float64."""
        fit, total, rows = self.objective.fit, 0.0, 0
        G, C = (torch.zeros_like(V, dtype=torch.float64) for _ in range(2))
        for A, B in self.rows.chunks():
            Z = fit.outputs(V, A)
            total += float(fit.error(Z, B))
            G += fit.pull_back(A, fit.g_slope(Z))
            C += fit.pull_back(A, fit.h_slope(Z, B))
            rows += len(A)
        return FullPass(total / rows, (G / rows).to(V.dtype), (C / rows).to(V.dtype))

    def acc_prox_svrg(self, V: Tensor, start: FullPass) -> Tensor:
        """The next DCA iterate from V; `start` is the full pass at V and holds the slope of h."""
        fit, anchor = self.objective.fit, V
        for stage in range(self.stages):
            at_anchor = self.full_pass(anchor) if stage > 0 else start
            drift = at_anchor.g_gradient - start.h_gradient
            x = y = anchor
            for A, _ in minibatches(self.rows, self.batch, self.generator):
                # Both gradients share the batch, so that their difference needs one product with A'.
                change = fit.g_slope(fit.outputs(y, A)) - fit.g_slope(fit.outputs(anchor, A))
                u = drift + fit.pull_back(A, change) / len(A)
                after = self.objective.prox(y - self.step * u, self.step)
                x, y = after, after + self.momentum * (after - x)
            anchor = x
        return anchor

    def run(self, V: Tensor, outer: int, *, least: int = 0, start: FullPass | None = None) -> "DcaResult":
        """At most `outer` iterates from V, fewer when they no longer move.

        least: non-zero weights that no iterate may fall below; V must have them.
        start: the full pass at V, where the caller has it.
        """
        here = start or self.full_pass(V)
        if not math.isfinite(here.fit):
            raise DataError("a layer's outputs must be finite, got NaN or infinite ones on the data")
        solver, values = self, [here.fit + self.objective.penalise(V)]
        for _ in range(outer):
            moved, objective = solver.acc_prox_svrg(V, here), solver.objective
            if int(torch.count_nonzero(objective.fit.weights(moved))) < least:
                solver = solver.at(objective.strength / 2)
                values = [here.fit + solver.objective.penalise(V)]
                continue
            there = solver.full_pass(moved)
            value = there.fit + objective.penalise(moved)
            if not value <= values[-1] * (1 + 1e-6):
                solver = replace(solver, step=solver.step / 2)
                continue
            change = float(torch.linalg.vector_norm(moved - V) / torch.linalg.vector_norm(V).clamp_min(1e-30))
            V, here = moved, there
            values.append(value)
            if change < TOLERANCE:
                return DcaResult(V, here, solver, values, Status.OK)
        return DcaResult(V, here, solver, values, Status.NOT_CONVERGED)


@dataclass(frozen=True)
class DcaResult:
    """Where the iterations ended."""

    V: Tensor
    last: FullPass  # at V
    solver: Dca  # with the lambda and the step that were used at the end
    values: list[float]  # F after each accepted iterate, the start included, since lambda last changed
    status: Status  # NOT_CONVERGED when the iterates still moved

    @property
    def nonzeros(self) -> int:
        return int(torch.count_nonzero(self.solver.objective.fit.weights(self.V)))


def solve_path(
    problem: LayerProblem, solver: Dca, keep: int, *, outer: int, search_steps: int
) -> tuple[DcaResult, list[list[float]]]:
    """DCA from the trained weights at the lambda whose solution has just over `keep` non-zeros.

    solver: its own lambda is not looked at; the one that is used is found by bisection on the logarithm.
    outer: DCA iterations at the lambda found, at the most.
    search_steps: trials of one iteration each.

    Returns the result, with `keep` non-zeros or more if the trained weights have, and each trial's [lambda, count].
    """
    V, fit = problem.trained, solver.objective.fit
    keep = min(keep, int(torch.count_nonzero(problem.W)))
    # Above `high` zero weights are stationary; 1e-5 of it leaves practically every weight.
    zero = V.clone()
    fit.weights(zero).zero_()
    here, at_zero = solver.full_pass(V), solver.full_pass(zero)
    gradient = fit.weights(at_zero.g_gradient - at_zero.h_gradient)
    high = 2 * max(float(gradient.abs().max()), 1e-12) + float(here.g_gradient.abs().max())
    low, searched = high * 1e-5, []
    for _ in range(search_steps):
        middle = (low * high) ** 0.5
        trial = solver.at(middle).run(V, 1, start=here)
        solver, count = trial.solver, trial.nonzeros
        searched.append([middle, count])
        problem.report("search", strength=middle, nonzeros=count, objective=trial.values[-1])
        # From an iterate with too few non-zeros, weights that left too early would seldom come back.
        if count >= keep:
            low, V, here = middle, trial.V, trial.last
        else:
            high = middle
    return solver.at(low).run(V, outer, least=keep, start=here), searched


def support_of(U: Tensor, penalty: Penalty, W: Tensor, keep: int) -> Tensor:
    """The mask of `keep` weights, the largest survivors, then the largest trained ones; of groups all that fit."""
    sizes, trained = penalty.sizes(U), penalty.sizes(W)
    scores = sizes.where(sizes > 0, trained / trained.max().clamp_min(1e-30) - 2)
    return top_k_mask(scores, keep * scores.numel() // U.numel()).expand(U.shape).clone()
