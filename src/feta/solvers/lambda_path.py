"""FeTa as published, at a chosen number of non-zeros: DCA (solvers.dca) with a search for lambda.

lambda is found by bisection on its logarithm. Every trial starts from the sparsest iterate so far that has
enough non-zeros: from one with too few, weights that left too early would seldom come back, and the layer
would end below its count. Then come the outer iterations at the lambda found, and the exact count by selection.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from feta.objective.penalty import Penalty, Regularised
from feta.problem import LayerProblem
from feta.solvers.dca import DcaResult, Svrg, dca, full_pass
from feta.sparsity import top_k_mask

Trials = list[tuple[float, int]]  # (lambda, non-zeros) of every trial


def solve_path(
    problem: LayerProblem,
    objective: Regularised,
    settings: Svrg,
    generator: torch.Generator,
    *,
    keep: int,
    outer: int,
    search_steps: int,
) -> tuple[DcaResult, Trials]:
    """DCA from the trained weights at the lambda whose solution has just over `keep` non-zeros.

    objective: the fit and the penalty; its strength is not looked at.
    outer: DCA iterations at the lambda found, at the most.
    search_steps: trials of one iteration each.

    Returns the result, which has at least `keep` non-zeros if the trained weights have, and the trials.
    """
    V, rows, fit = problem.trained, problem.rows, objective.fit
    keep = min(keep, int(torch.count_nonzero(problem.W)))
    here = full_pass(V, rows, fit)
    # Above `high` zero weights are stationary; 1e-5 of it leaves practically every weight.
    zero = V.clone()
    fit.weights(zero).zero_()
    at_zero = full_pass(zero, rows, fit)
    gradient = fit.weights(at_zero.g_gradient - at_zero.h_gradient)
    high = 2 * max(float(gradient.abs().max()), 1e-12) + float(here.g_gradient.abs().max())
    low, searched = high * 1e-5, Trials()
    for _ in range(search_steps):
        middle = (low * high) ** 0.5
        tried = replace(objective, strength=middle)
        trial = dca(V, rows, tried, settings, generator, outer=1, start=here)
        settings, count = trial.settings, trial.nonzeros
        searched.append((middle, count))
        problem.report("search", strength=middle, nonzeros=count, objective=trial.values[-1])
        if count >= keep:
            low, V, here = middle, trial.V, trial.last
        else:
            high = middle
    found = replace(objective, strength=low)
    return dca(V, rows, found, settings, generator, outer=outer, least=keep, start=here), searched


def support_of(U: Tensor, penalty: Penalty, W: Tensor, keep: int) -> Tensor:
    """The mask of exactly `keep` weights, the largest survivors first, then the largest trained ones.

    For group penalties whole groups, as many as fit into `keep`.
    """
    sizes, trained = penalty.sizes(U), penalty.sizes(W)
    scores = sizes.where(sizes > 0, trained / trained.max().clamp_min(1e-30) - 2)
    return top_k_mask(scores, keep * scores.numel() // U.numel()).expand(U.shape).clone()
