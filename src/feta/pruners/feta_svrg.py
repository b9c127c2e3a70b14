"""FeTa as published (solvers.dca); what the paper leaves open are options: the search for lambda and the refit."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from feta.calibration.statistics import gram
from feta.errors import check_fields
from feta.objective.activation import Activation, Softplus
from feta.objective.penalty import Penalty, Regularised, penalty_of
from feta.problem import LayerProblem, LayerSolution, Needs, Status
from feta.solvers.dca import Dca, solve_path, support_of
from feta.solvers.gram import GramSettings, GramSolve, GramSystem
from feta.solvers.norms import largest_eigenvalue
from feta.solvers.targets import StreamedTargets
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class FetaSvrg:
    """Fit the layer's outputs after the ReLU by the paper's own algorithm, DCA with proximal SVRG.

    Formula: min over U of (1/m) Σ ‖ρ(aᵀU) − b‖² + λ Ω(U)
    Cost: 2·stages passes for each of search_steps + outer iterations, refits more for debias; d_in² memory.
    Source: the paper, Algorithms 1 and 2 with the values of appendix C.

    regulariser: Ω: "l1" for single weights, "rows" for whole inputs, "columns" for whole outputs, or a Penalty.
    strength: λ, relative to the mean error of a row. None: searched for the sparsity asked for; a given one is
        used as it is, and the sparsity is what comes of it.
    outer: linearisations of h at the λ found, at the most.
    stages: full gradients of each of them.
    batch: rows in a minibatch.
    step: η; cut to 1/L where the data needs a shorter one, and halved where F rises.
    momentum: β.
    theta: θ of the smooth ReLU log(1 + exp(θz))/θ. None: the true ReLU, which the network runs.
    search_steps: trials for λ.
    debias: whether the surviving weights are refitted on their support, because the l1 norm shrinks them.
    refits: of debias, at the most.
    ridge: of every refit towards the weights before it, as a share of the mean of H's diagonal.
    seed: of the order of the minibatches.
    """

    name: ClassVar[str] = "feta-svrg"

    regulariser: str | Penalty = "l1"
    strength: float | None = None
    outer: int = 8
    stages: int = 3
    batch: int = 200
    step: float = 1e-3
    momentum: float = 0.95
    theta: float | None = None
    search_steps: int = 10
    debias: bool = True
    refits: int = 20
    ridge: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, ">= 1", "outer", "search_steps", "refits")
        check_fields(self, ">= 0", "strength", "ridge")
        check_fields(self, "> 0", "theta", "stages", "batch", "step")
        check_fields(self, "in [0, 1)", "momentum")
        _ = self._penalty  # so that a bad one is refused now

    @property
    def needs(self) -> Needs:
        # Groups leave as a whole, so as many stay as fit; a given strength promises no count at all.
        count: Literal["exact", "most", "own"] = "most" if self._penalty.grouped else "exact"
        return Needs("many", seed=True, count=count if self.strength is None else "own")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        W, keep = problem.W, target.count(problem.W.numel())
        sums = gram(problem.rows, with_bias=problem.bias is not None)
        # Beyond 1 / L no gradient step is safe; the published step is kept where it is shorter.
        step = min(self.step, sums.rows / (2 * largest_eigenvalue(sums.H, self.seed)))
        fit, generator = problem.fit, torch.Generator().manual_seed(self.seed)
        if self.theta is not None and problem.activation is Activation.RELU:
            fit = replace(fit, rho=Softplus(self.theta))
        objective = Regularised(fit, self._penalty, self.strength or 0.0)
        solver = Dca(problem.rows, objective, generator, self.stages, self.batch, step, self.momentum)
        if self.strength is None and keep < W.numel():
            result, searched = solve_path(problem, solver, keep, outer=self.outer, search_steps=self.search_steps)
        else:
            result, searched = solver.run(problem.trained, self.outer), []
        U, status = fit.weights(result.V), result.status
        mask = U != 0 if self.strength is not None else support_of(U, self._penalty, W, keep)
        V = torch.cat([U.where(mask, 0), result.V[len(W) :]])
        stats: dict[str, Any] = {"strength": result.solver.objective.strength, "step": result.solver.step}
        stats |= {"objectives": result.values, "nonzeros_before_selection": result.nonzeros, "searched": searched}
        if self.debias:
            rounds = GramSettings(retargets=self.refits, ridge=self.ridge, tolerance=1e-4)
            refit = GramSolve(GramSystem(sums.H, len(W)), StreamedTargets(problem), rounds, V.double(), mask)
            refit.retarget()
            V, status, stats["debiased_objectives"] = refit.V, refit.status, refit.objectives
        message = "" if status is Status.OK else f"the solver ended as {status.value}"
        return problem.solved(V, status, message, stats, target if self.needs.count == "exact" else None)

    @property
    def _penalty(self) -> Penalty:
        return penalty_of(self.regulariser, "FetaSvrg.regulariser")
