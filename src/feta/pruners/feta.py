"""FeTa, the paper's algorithm: the layer's response after its ReLU, as a difference of convex functions.

    minimize over U   (1/m) sum ||rho(a'U + bias) - b||^2 + lambda * Omega(U)

solver="svrg" is Algorithms 1 and 2 as published; what the paper leaves open (the search for lambda, the
exact count, the refit on the support) are options of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from feta.calibration.statistics import gram
from feta.errors import ConfigError
from feta.objective.datafit import DataFit
from feta.objective.rectifier import Identity, Rectifier, Relu, Softplus
from feta.problem import Activation, LayerProblem, LayerSolution, Status
from feta.solvers.lambda_path import penalty_maker, solve_path, support_of
from feta.solvers.majorise import refit_on_support
from feta.solvers.power import largest_eigenvalue
from feta.solvers.prox_svrg import Svrg
from feta.solvers.refit import split_bias_row, with_bias_row
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Feta:
    """Fit the layer's outputs after the ReLU by a difference of convex functions.

    Formula: min over U of (1/m) Σ ‖ρ(aᵀU) − b‖² + λ Ω(U), DCA over Acc-Prox-SVRG
    Cost: search_steps + outer iterations of 2·stages passes over the data.
    Source: Algorithms 1 and 2 of the paper; values of its appendix C.
    """

    name: ClassVar[str] = "feta"
    passes: ClassVar[str] = "many"

    solver: Literal["svrg"] = "svrg"
    regulariser: Literal["l1", "rows", "columns"] = "l1"
    strength: float | None = None  # lambda; None: searched for the target sparsity
    outer: int = 8
    stages: int = 3
    batch: int = 200
    step: float = 1e-3
    momentum: float = 0.95
    theta: float | None = None  # of the smooth ReLU; None: the true one
    debias: bool = True
    refits: int = 20  # of debias, at the most
    search_steps: int = 10
    ridge: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("outer", "search_steps", "refits"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"Feta.{name} must be >= 1, got {getattr(self, name)}")
        for name in ("ridge", "strength"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ConfigError(f"Feta.{name} must be >= 0, got {getattr(self, name)}")
        self._settings()
        self._rectifier(Activation.RELU)

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        has_bias = problem.bias is not None
        keep = target.count(problem.W.numel())
        V = with_bias_row(problem.W, problem.bias)
        statistics = gram(problem.rows, with_bias=has_bias)
        # Beyond 1 / L no gradient step is safe; the published step is kept where it is shorter.
        longest = statistics.rows / (2 * largest_eigenvalue(statistics.H, self.seed))
        settings = self._settings(min(self.step, longest))
        path = solve_path(
            problem,
            V,
            DataFit(self._rectifier(problem.activation), has_bias),
            penalty_maker(self.regulariser),
            settings,
            strength=self.strength,
            keep=keep,
            outer=self.outer,
            search_steps=self.search_steps,
            generator=torch.Generator().manual_seed(self.seed),
        )
        found = path.result.V
        U = found[: len(problem.W)]
        mask = U != 0 if self.strength is not None else support_of(U, path.penalty, problem.W, keep)
        stats = {
            "strength": path.penalty.strength,
            "step": path.result.settings.step,
            "objectives": list(path.result.objectives),
            "nonzeros_before_selection": int(torch.count_nonzero(U)),
            "searched": [list(trial) for trial in path.searched],
        }
        status = path.result.status
        if self.debias:
            refit = refit_on_support(problem, statistics.H, mask, found, rounds=self.refits, ridge=self.ridge)
            found, status = refit.V.to(problem.W.dtype), refit.refit.status
            stats["debiased_objectives"] = list(refit.objectives)
        U, bias = split_bias_row(found, has_bias)
        message = "" if status is Status.OK else f"the solver ended as {status.value}"
        return LayerSolution(U.where(mask, 0), bias, status, message, stats)

    def _settings(self, step: float | None = None) -> Svrg:
        return Svrg(self.stages, self.batch, self.step if step is None else step, self.momentum)

    def _rectifier(self, activation: Activation) -> Rectifier:
        if activation is Activation.LINEAR:
            return Identity()
        return Relu() if self.theta is None else Softplus(self.theta)
