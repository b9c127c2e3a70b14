"""FeTa on the Gram matrix: the ReLU objective at an exact number of non-zeros, for about one pass.

    minimize over V   F(V) = (1/m) ||rho(A~ V) - B||^2      with k non-zero weights in the layer

    1. one pass: H = A~' A~
    2. support: l0-constrained ADMM on H (solvers.support_admm), exact top-k over the layer
    3. refit: every column exactly on its support (solvers.masked_refit)
    4. re-target: the new A~' T, and back to 3, or to 2 for a support that suits the new targets

The targets (solvers.majorise) are read from a sample of the rows that is held, or from all rows in passes.
A step is kept only when it lowers F over these rows. Weights on the outputs, s_j, enter the choice of the
support alone: they say which outputs get the weights, not how an output is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from feta.errors import check_range
from feta.problem import LayerProblem, Status
from feta.solvers.majorise import Step, StreamedTargets
from feta.solvers.masked_refit import Refit, masked_refit
from feta.solvers.support_admm import Admm, SupportResult, support_admm
from feta.solvers.wide import RowsSystem

SLOW = Admm(rho=0.03, schedule=((0.0, 1.3),), every=4, relaxation=1.6)


@dataclass(frozen=True)
class GramSettings:
    """How much work the solver may put in.

    retargets: new targets, at the most.
    searches: for a support, the first included.
    ridge: of every refit towards the weights before it, as a share of the mean of H's diagonal.
    tolerance: the solve ends when a step lowers F by less than this share of it; 0: never.
    admm: of the search for a support. rho grows more slowly than in ALPS, which finds a better support.
    """

    retargets: int = 3
    searches: int = 1
    ridge: float = 1e-3
    tolerance: float = 0.0
    admm: Admm = SLOW

    def __post_init__(self) -> None:
        check_range("GramSettings", ">= 1", retargets=self.retargets, searches=self.searches)


@dataclass
class GramResult:
    """The pruned layer, and how the solve went.

    V: (d_in [+ 1], d_out).
    mask: (d_in, d_out) bool.
    objectives: F after each accepted step, the start of the re-targeting first.
    iterations: of ADMM, over all searches.
    damping: the most that a factor needed.
    """

    V: Tensor
    mask: Tensor
    objectives: list[float] = field(default_factory=list)
    iterations: int = 0
    status: Status = Status.OK
    damping: float = 0.0


@dataclass(frozen=True)
class GramSystem:
    """Everything from H (d_in [+ 1], d_in [+ 1]), the sums over all rows."""

    H: Tensor
    d_in: int

    def support(
        self, C: Tensor, V: Tensor, keep: int, admm: Admm, weights: Tensor | None = None
    ) -> SupportResult:
        return support_admm(self.H, C, V, keep, admm, prunable=self.d_in, column_weights=weights)

    def refit(self, C: Tensor, mask: Tensor, V: Tensor, ridge: float) -> Refit:
        return masked_refit(self.H, C, mask, ridge=ridge, toward=V)


System = (
    GramSystem | RowsSystem
)  # the least-squares problems of one layer: by its Gram matrix, or by held rows


def solve_gram(
    problem: LayerProblem, system: System, reader: StreamedTargets, keep: int, settings: GramSettings
) -> GramResult:
    """The layer with `keep` non-zeros."""
    solve = _Solve(problem, system, reader, settings, GramResult(problem.trained, problem.W != 0))
    C = reader.start()
    reader.release()  # the support search needs the memory
    solve.result.mask = solve.support(C, keep)
    solve.result.V = solve.refit(C, solve.result.mask)
    del C
    return solve.retarget(keep)


def refit_on_support(
    problem: LayerProblem,
    system: System,
    reader: StreamedTargets,
    V: Tensor,
    mask: Tensor,
    settings: GramSettings,
) -> GramResult:
    """min F over weights on the mask (d_in, d_out), from V, in float64; V must be zero elsewhere."""
    result = GramResult(V.double(), mask)
    return _Solve(problem, system, reader, settings, result).retarget(0)


@dataclass(frozen=True)
class _Solve:
    """One layer's solve; `result` is where it stands."""

    problem: LayerProblem
    system: System
    reader: StreamedTargets
    settings: GramSettings
    result: GramResult

    def support(self, C: Tensor, keep: int) -> Tensor:
        weights, result = self.problem.output_weights, self.result
        found = self.system.support(C, result.V, keep, self.settings.admm, weights)
        result.iterations += found.iterations
        if found.status is Status.NOT_CONVERGED and result.status is Status.OK:
            result.status = Status.NOT_CONVERGED
        result.damping = max(result.damping, found.damping)
        self.problem.report("support", iterations=found.iterations, rho=found.rho)
        return found.mask[: len(self.problem.W)]

    def refit(self, C: Tensor, mask: Tensor) -> Tensor:
        result = self.result
        refit = self.system.refit(C, mask, result.V, self.settings.ridge)
        if refit.status is not Status.OK:
            result.status, result.damping = refit.status, max(result.damping, refit.damping)
        return refit.V.to(result.V.dtype)

    def retarget(self, keep: int) -> GramResult:
        """New targets and a refit, again and again; the first of them with a new support of `keep` weights."""
        result, reader, settings = self.result, self.reader, self.settings
        here, mask = reader.at(result.V), result.mask
        result.objectives.append(here.objective)
        before, weight = result.V, 1.0  # Nesterov's sequence, begun anew whenever a step is refused
        tight = False  # whether the targets at hand are those of the DC slope
        for round_ in range(1, settings.retargets + 1):
            if round_ < settings.searches:
                mask = self.support(here.C, keep)
                before, weight = result.V.where(_whole(mask, result.V), 0), 1.0
            refit = self.refit(here.C, mask)
            heavier = (1 + (1 + 4 * weight**2) ** 0.5) / 2
            push = (weight - 1) / heavier
            trial = refit + push * (refit - before)
            last = round_ == settings.retargets  # nothing follows that would need its targets
            there = Step(reader.objective(trial), here.C) if last else reader.at(trial)
            self.problem.report("retarget", objective=there.objective, round=round_)
            if there.objective <= result.objectives[-1]:
                gain = result.objectives[-1] - there.objective
                before, weight = refit, heavier
                result.V, result.mask, here, tight = trial, mask, there, False
                result.objectives.append(there.objective)
                if gain < settings.tolerance * result.objectives[-2]:
                    break
            elif push > 0 or mask is not result.mask:
                mask, before, weight = result.mask, result.V, 1.0
            elif tight or last:
                break
            else:
                # Some outputs have died, where the convex bound is not tight: the DC slope is.
                here, tight = reader.at(result.V, revive=False), True
        return result


def _whole(mask: Tensor, V: Tensor) -> Tensor:
    """The mask with the bias row, which is always kept."""
    return torch.cat([mask, mask.new_ones(len(V) - len(mask), mask.shape[1])])
