"""FeTa, the paper's algorithm: the layer's response after its ReLU, as a difference of convex functions.

    minimize over U   (1/m) sum ||rho(a'U + bias) - b||^2 + lambda * Omega(U)

solver="gram" solves it at an exact number of non-zeros as least squares with moving targets and one fixed
Gram matrix (solvers.gram). solver="svrg" is Algorithms 1 and 2 as published; what the paper leaves open (the
search for lambda, the exact count, the refit on the support) are options of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from feta.calibration.statistics import gram
from feta.calibration.stream import TensorStream
from feta.errors import ConfigError, unknown_name
from feta.objective.datafit import DataFit
from feta.objective.rectifier import Identity, Rectifier, Relu, Softplus
from feta.problem import Activation, LayerProblem, LayerSolution, Status
from feta.solvers.gram import GramResult, GramSettings, GramSystem, solve_gram
from feta.solvers.lambda_path import penalty_maker, solve_path, support_of
from feta.solvers.majorise import SampledTargets, StreamedTargets, refit_on_support
from feta.solvers.power import largest_eigenvalue
from feta.solvers.prox_svrg import Svrg
from feta.solvers.refit import split_bias_row, with_bias_row
from feta.solvers.wide import RowsSystem
from feta.sparsity import Sparsity

QUALITIES = {
    "fast": GramSettings(retargets=1, rho=0.1, every=3),
    "default": GramSettings(),
    "best": GramSettings(retargets=10, searches=3, growth=1.05, every=3, max_iterations=600),
}

GRAM_BYTES = 20  # of the solver's matrices, for each entry of H: 5 float32 at the most at once

SVRG_OPTIONS = (
    "regulariser", "strength", "stages", "batch", "step", "momentum", "theta", "search_steps", "debias",
    "refits",
)  # fmt: skip


@dataclass(frozen=True)
class Feta:
    """Fit the layer's outputs after the ReLU: a difference of convex functions.

    Formula: min over U of (1/m) Σ ‖ρ(aᵀU) − b‖² + λ Ω(U)
    Cost: gram: one pass and a sample (best: a dozen passes), d_in² memory; svrg: 2·stages·(search + outer) passes.
    Source: the paper; svrg is its Algorithms 1 and 2 with the values of appendix C.
    """

    name: ClassVar[str] = "feta"

    solver: Literal["gram", "svrg"] = "gram"
    outer: int | None = None  # linearisations of h; None: 8 for svrg, by quality for gram
    quality: Literal["fast", "default", "best"] = "default"  # of gram
    sample: int | None = None  # rows that gram re-targets on; None: 2 d_in, 4096 at least; "best" reads all
    memory: float = 8.0  # GiB for matrices of d_in^2; a wider layer is solved on held rows, without them
    weigh_outputs: bool = True  # gram: by how much they matter to the network's own outputs
    regulariser: Literal["l1", "rows", "columns"] = "l1"  # of svrg, as all that follow
    strength: float | None = None  # lambda; None: searched for the target sparsity
    stages: int = 3
    batch: int = 200
    step: float = 1e-3
    momentum: float = 0.95
    theta: float | None = None  # of the smooth ReLU; None: the true one
    search_steps: int = 10
    debias: bool = True
    refits: int = 20  # of debias, at the most
    ridge: float = 1e-3  # of every refit, of the mean of H's diagonal, towards the weights before it
    seed: int = 0

    def __post_init__(self) -> None:
        choices = (
            ("solver", ("gram", "svrg")),
            ("quality", QUALITIES),
            ("regulariser", ("l1", "rows", "columns")),
        )
        for name, known in choices:
            if getattr(self, name) not in known:
                raise unknown_name(f"Feta.{name}", getattr(self, name), known)
        for name in ("outer", "search_steps", "refits", "sample"):
            if getattr(self, name) is not None and not getattr(self, name) >= 1:
                raise ConfigError(f"Feta.{name} must be >= 1, got {getattr(self, name)}")
        if not self.memory > 0:
            raise ConfigError(f"Feta.memory must be > 0 GiB, got {self.memory}")
        for name in ("ridge", "strength"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ConfigError(f"Feta.{name} must be >= 0, got {getattr(self, name)}")
        self._settings()
        self._rectifier(Activation.RELU)
        if self.solver == "gram":
            self._refuse(SVRG_OPTIONS, "solver='svrg'")
        else:
            self._refuse(("quality", "sample", "memory", "weigh_outputs"), "solver='gram'")

    def _refuse(self, names: tuple[str, ...], needed: str) -> None:
        """An option that would be ignored is a mistake, not a no-op."""
        defaults = {f.name: f.default for f in fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"Feta.{name} must go with {needed}, got it with solver='{self.solver}'")

    @property
    def passes(self) -> str:
        return "few" if self.solver == "gram" else "many"

    @property
    def uses_importance(self) -> bool:
        """Whether the engine should find out how much each output matters."""
        return self.solver == "gram" and self.weigh_outputs

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        keep = target.count(problem.W.numel())
        V = with_bias_row(problem.W, problem.bias)
        solve = self._svrg if self.solver == "svrg" else self._wide if self._too_wide(problem) else self._gram
        found, mask, status, stats = solve(problem, V, keep)
        U, bias = split_bias_row(found.to(problem.W.dtype), problem.bias is not None)
        message = stats.pop("message", "")
        if status is not Status.OK:
            message = "; ".join(part for part in (f"the solver ended as {status.value}", message) if part)
        return LayerSolution(U.where(mask, 0), bias, status, message, stats)

    def _gram(self, problem: LayerProblem, V: Tensor, keep: int) -> _Found:
        statistics = gram(problem.rows, with_bias=problem.bias is not None)
        reader = (
            StreamedTargets(problem)
            if self.quality == "best"
            else SampledTargets(problem, statistics, self._sample(problem))
        )
        system = GramSystem(statistics.H, len(problem.W))
        result = solve_gram(problem, system, reader, V, keep, self._gram_settings())
        return result.V, result.mask, result.status, _stats(result)

    def _wide(self, problem: LayerProblem, V: Tensor, keep: int) -> _Found:
        """The same solve on as many held rows as the memory has room for."""
        d_in, d_out = problem.W.shape
        size = max(1, min(_room(self.memory * 2**30 / 4, d_in + 2 * d_out), self._sample(problem)))
        thin = problem.rows.thinned(max(1, -(-problem.rows.n_rows // size)))
        A, B = (torch.cat(parts) for parts in zip(*thin.chunks(), strict=True))
        held = replace(problem, stream=TensorStream(A, B))
        system = RowsSystem.of(A, problem.bias is not None)
        result = solve_gram(held, system, StreamedTargets(held), V, keep, self._gram_settings())
        needed = GRAM_BYTES * d_in**2 / 2**30
        stats = _stats(result) | {"held_rows": len(A)}
        stats["message"] = (
            f"{d_in} inputs need {needed:.1f} GiB for a Gram matrix, over Feta.memory = {self.memory:g}: "
            f"solved on {len(A)} held rows without one"
        )
        return result.V, result.mask, result.status, stats

    def _too_wide(self, problem: LayerProblem) -> bool:
        return GRAM_BYTES * len(problem.W) ** 2 > self.memory * 2**30

    def _sample(self, problem: LayerProblem) -> int:
        return self.sample or max(4096, 2 * len(problem.W))

    def _gram_settings(self) -> GramSettings:
        settings = replace(QUALITIES[self.quality], ridge=self.ridge)
        return settings if self.outer is None else replace(settings, retargets=self.outer)

    def _svrg(self, problem: LayerProblem, V: Tensor, keep: int) -> _Found:
        statistics = gram(problem.rows, with_bias=problem.bias is not None)
        # Beyond 1 / L no gradient step is safe; the published step is kept where it is shorter.
        longest = statistics.rows / (2 * largest_eigenvalue(statistics.H, self.seed))
        path = solve_path(
            problem,
            V,
            DataFit(self._rectifier(problem.activation), statistics.with_bias),
            penalty_maker(self.regulariser),
            self._settings(min(self.step, longest)),
            strength=0.0 if keep == problem.W.numel() and self.strength is None else self.strength,
            keep=keep,
            outer=8 if self.outer is None else self.outer,
            search_steps=self.search_steps,
            generator=torch.Generator().manual_seed(self.seed),
        )
        found = path.result.V
        U = found[: len(problem.W)]
        mask = U != 0 if self.strength is not None else support_of(U, path.penalty, problem.W, keep)
        stats: dict[str, Any] = {
            "strength": path.penalty.strength,
            "step": path.result.settings.step,
            "objectives": list(path.result.objectives),
            "nonzeros_before_selection": int(torch.count_nonzero(U)),
            "searched": [list(trial) for trial in path.searched],
        }
        if not self.debias:
            return found, mask, path.result.status, stats
        reader = StreamedTargets(problem)
        refit = refit_on_support(reader, statistics.H, mask, found, rounds=self.refits, ridge=self.ridge)
        stats["debiased_objectives"] = list(refit.objectives)
        return refit.V, mask, refit.refit.status, stats

    def _settings(self, step: float | None = None) -> Svrg:
        return Svrg(self.stages, self.batch, self.step if step is None else step, self.momentum)

    def _rectifier(self, activation: Activation) -> Rectifier:
        if activation is Activation.LINEAR:
            return Identity()
        return Relu() if self.theta is None else Softplus(self.theta)


def _room(values: float, width: int) -> int:
    """The most rows m with m * width for the rows themselves and 2 m^2 for their products and its factor."""
    return int((math.sqrt(width**2 + 8 * values) - width) / 4)


def _stats(result: GramResult) -> dict[str, Any]:
    return {"objectives": result.objectives, "iterations": result.iterations, "damping": result.damping}


_Found = tuple[Tensor, Tensor, Status, dict[str, Any]]  # V, mask, status, stats
