"""FeTa as published, at a chosen number of non-zeros: DCA with a search for the penalty's strength.

    minimize over V   (1/m) sum ||rho(A~ V) - B||^2 + lambda * Omega(U)

lambda is found by bisection on its logarithm, each step warm-started from the last; then the full number of
outer iterations at the lambda found; then the exact count by selection. The l1 norm shrinks what survives,
which a refit on the support undoes (`debias`, by the caller).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.objective.datafit import DataFit
from feta.objective.penalty import L1, GroupLasso, Penalty
from feta.problem import LayerProblem
from feta.solvers.dca import DcaResult, dca
from feta.solvers.prox_svrg import Svrg, full_pass
from feta.sparsity import top_k_mask

MakePenalty = Callable[[float], Penalty]


@dataclass(frozen=True)
class PathResult:
    result: DcaResult
    penalty: Penalty
    searched: tuple[tuple[float, int], ...]  # (lambda, non-zeros) of every trial


def solve_path(
    problem: LayerProblem,
    V: Tensor,
    fit: DataFit,
    make: MakePenalty,
    settings: Svrg,
    *,
    strength: float | None,
    keep: int,
    outer: int,
    search_steps: int,
    generator: torch.Generator,
) -> PathResult:
    """DCA at the given strength, or at the one whose solution has just over `keep` non-zeros."""
    start = full_pass(V, problem.rows, fit)
    if strength is not None:
        penalty = make(strength)
        result = dca(V, problem.rows, fit, penalty, settings, generator, outer=outer, start=start)
        return PathResult(result, penalty, ())
    # Above `high` zero weights are stationary; 1e-5 of it leaves practically every weight.
    zero = V.clone()
    zero[: len(problem.W)] = 0
    at_zero = full_pass(zero, problem.rows, fit)
    gradient = (at_zero.g_gradient - at_zero.h_gradient)[: len(problem.W)]
    high = 2 * max(float(gradient.abs().max()), 1e-12) + float(start.g_gradient.abs().max())
    low, best = high * 1e-5, high * 1e-5
    searched: list[tuple[float, int]] = []
    current = V
    for _ in range(search_steps):
        middle = (low * high) ** 0.5
        trial = dca(current, problem.rows, fit, make(middle), settings, generator, outer=1)
        current, settings = trial.V, trial.settings
        count = int(torch.count_nonzero(trial.V[: len(problem.W)]))
        searched.append((middle, count))
        problem.report("search", strength=middle, nonzeros=count, objective=trial.objectives[-1])
        if count >= keep:
            low, best = middle, middle
        else:
            high = middle
    penalty = make(best)
    result = dca(current, problem.rows, fit, penalty, settings, generator, outer=outer)
    return PathResult(result, penalty, tuple(searched))


def support_of(U: Tensor, penalty: Penalty, W: Tensor, keep: int) -> Tensor:
    """The mask of exactly `keep` weights, the survivors first, then the largest trained ones.

    For group penalties whole groups, as many as fit into `keep`.
    """
    scores = U.abs() + 1e-9 * float(U.abs().max()) * W.abs() / W.abs().max().clamp_min(1e-30)
    if isinstance(penalty, GroupLasso):
        norms = penalty.norms(scores)
        return top_k_mask(norms, keep // U.shape[penalty.dim]).expand(U.shape).clone()
    return top_k_mask(scores, keep)


def penalty_maker(regulariser: str) -> MakePenalty:
    makers: dict[str, MakePenalty] = {
        "l1": L1,
        "rows": lambda strength: GroupLasso(strength, dim=1),
        "columns": lambda strength: GroupLasso(strength, dim=0),
    }
    return makers[regulariser]
