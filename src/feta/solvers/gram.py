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
from typing import Protocol

import torch
from torch import Tensor

from feta.errors import ConfigError
from feta.problem import LayerProblem, Status
from feta.solvers.majorise import Step, TargetReader
from feta.solvers.masked_refit import Refit, masked_refit
from feta.solvers.support_admm import SupportResult, support_admm


@dataclass(frozen=True)
class GramSettings:
    """How much work the solver may put in."""

    retargets: int = 3
    searches: int = 1  # for a support, the first included
    rho: float = 0.03
    growth: float = 1.3  # of rho …
    every: int = 4  # … after so many iterations
    relaxation: float = 1.6
    max_iterations: int = 300
    ridge: float = 1e-3  # of the mean of H's diagonal, towards the weights before the refit

    def __post_init__(self) -> None:
        for name in ("retargets", "searches", "every", "max_iterations"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"GramSettings.{name} must be >= 1, got {getattr(self, name)}")
        if not self.growth > 1:
            raise ConfigError(f"GramSettings.growth must be > 1, got {self.growth}")


@dataclass
class GramResult:
    V: Tensor  # (d_in [+ 1], d_out), in the layer's own dtype
    mask: Tensor  # (d_in, d_out) bool
    objectives: list[float] = field(default_factory=list)  # F after each accepted step, the first refit first
    iterations: int = 0  # of ADMM
    status: Status = Status.OK
    damping: float = 0.0


class System(Protocol):
    """The least-squares problems of one layer: what differs between a Gram matrix and held rows."""

    def support(
        self, C: Tensor, V: Tensor, keep: int, settings: GramSettings, weights: Tensor | None = None
    ) -> SupportResult:
        """The best weights to keep, from V, with outputs weighted; its mask has the bias row too."""
        ...

    def refit(self, C: Tensor, mask: Tensor, V: Tensor, ridge: float) -> Refit: ...


def solve_gram(
    problem: LayerProblem, system: System, reader: TargetReader, V: Tensor, keep: int, settings: GramSettings
) -> GramResult:
    """The pruned layer from the trained V (bias in the last row)."""
    search = _Search(problem, system, keep, settings)
    result = search.result
    C = reader.start()
    reader.release()  # the support search needs the memory
    mask = search.support(C, V)
    V = search.refit(C, mask, V)
    del C
    here = reader.at(V)
    result.V, result.mask = V, mask
    result.objectives.append(here.objective)
    before, weight = V, 1.0  # Nesterov's sequence, begun anew whenever a step is refused
    for round_ in range(1, settings.retargets + 1):
        if round_ < settings.searches:
            mask = search.support(here.C, result.V)
            before, weight = result.V.where(_whole(mask, result.V), 0), 1.0
        refit = search.refit(here.C, mask, result.V)
        heavier = (1 + (1 + 4 * weight**2) ** 0.5) / 2
        push = (weight - 1) / heavier
        trial = refit + push * (refit - before)
        last = round_ == settings.retargets  # nothing follows that would need its targets
        there = Step(reader.objective(trial), here.C) if last else reader.at(trial)
        problem.report("retarget", objective=there.objective, round=round_)
        if there.objective <= result.objectives[-1]:
            before, weight = refit, heavier
            result.V, result.mask, here = trial, mask, there
            result.objectives.append(there.objective)
        elif push > 0 or mask is not result.mask:
            mask, before, weight = result.mask, result.V, 1.0
        elif not last:
            # Some outputs have died, where the convex bound is not tight: the DC slope is.
            here = reader.at(result.V, revive=False)
    return result


@dataclass
class _Search:
    """The system and the settings, and what the solve has cost so far."""

    problem: LayerProblem
    system: System
    keep: int
    settings: GramSettings
    result: GramResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = GramResult(self.problem.W, self.problem.W)

    def support(self, C: Tensor, V: Tensor) -> Tensor:
        found = self.system.support(C, V, self.keep, self.settings, self.problem.output_weights)
        self.result.iterations += found.iterations
        if found.status is Status.NOT_CONVERGED and self.result.status is Status.OK:
            self.result.status = Status.NOT_CONVERGED
        self.result.damping = max(self.result.damping, found.damping)
        self.problem.report("support", iterations=found.iterations, rho=found.rho)
        return found.mask[: len(self.problem.W)]

    def refit(self, C: Tensor, mask: Tensor, V: Tensor) -> Tensor:
        refit = self.system.refit(C, mask, V, self.settings.ridge)
        if refit.status is not Status.OK:
            self.result.status = refit.status
            self.result.damping = max(self.result.damping, refit.damping)
        return refit.V.to(V.dtype)


def _whole(mask: Tensor, V: Tensor) -> Tensor:
    """The mask with the bias row, which is always kept."""
    return torch.cat([mask, mask.new_ones(len(V) - len(mask), mask.shape[1])])


@dataclass(frozen=True)
class GramSystem:
    """Everything from H (d_in [+ 1], d_in [+ 1]), the sums over all rows."""

    H: Tensor
    d_in: int

    def support(
        self, C: Tensor, V: Tensor, keep: int, settings: GramSettings, weights: Tensor | None = None
    ) -> SupportResult:
        return support_admm(
            self.H,
            C,
            V,
            keep,
            column_weights=weights,
            penalised_rows=torch.arange(len(self.H), device=self.H.device) < self.d_in,
            rho=settings.rho,
            schedule=((0.0, settings.growth),),
            every=settings.every,
            max_iterations=settings.max_iterations,
            relaxation=settings.relaxation,
        )

    def refit(self, C: Tensor, mask: Tensor, V: Tensor, ridge: float) -> Refit:
        return masked_refit(self.H, C, mask, ridge=ridge, toward=V)
