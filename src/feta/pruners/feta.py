"""FeTa by least squares with moving targets (solvers.gram); the paper's own algorithm is the method feta-svrg."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from feta.calibration.statistics import gram, ranks_of
from feta.calibration.stream import TensorStream
from feta.errors import check_fields
from feta.problem import LayerProblem, LayerSolution, Needs, Status
from feta.solvers.gram import SLOW, GramSettings, GramSystem, solve_gram
from feta.solvers.targets import SampledTargets, StreamedTargets
from feta.solvers.wide import RowsSystem
from feta.sparsity import Sparsity

QUALITIES = {  # re-targets, searches for a support, how a search goes
    "fast": GramSettings(1, admm=replace(SLOW, rho=0.1, every=3)),
    "default": GramSettings(),
    "best": GramSettings(10, 3, admm=replace(SLOW, schedule=((0.0, 1.05),), every=3, max_iterations=600)),
}

SAMPLE_VALUES = 2**23  # entries of the held rows
GRAM_BYTES = 20  # of the solver's matrices, for each entry of H: 5 float32 at the most at once


@dataclass(frozen=True)
class Feta:
    """Fit the layer's outputs after the ReLU: a difference of convex functions.

    Formula: min over U of (1/m) Σ ‖ρ(aᵀU) − b‖²  s.t.  ‖U‖₀ = k
    Cost: one pass and a sample (best: a dozen passes), d_in² memory.
    Source: the paper's objective, with a solver of our own.

    quality: how much work is put in: "fast", "default", or "best", which reads all rows for every re-target.
    outer: re-targets, at the most. None: by quality, 1, 3 or 10.
    sample: rows that targets are read from, but for "best". None: 8 d_in, 4096 at least, and as many as take 32 MiB.
    memory: GiB for matrices of d_in², and for rows that are held. A wider layer is solved on held rows alone.
    weigh_outputs: whether outputs that matter more to the network's own outputs get more of the weights.
    ridge: of every refit towards the weights before it, as a share of the mean of H's diagonal. None: 0.001, and
        0.01 for wide layers that no activation follows; more for a large layer with few rows.
    """

    name: ClassVar[str] = "feta"

    quality: Literal["fast", "default", "best"] = "default"
    outer: int | None = None
    sample: int | None = None
    memory: float = 8.0
    weigh_outputs: bool = True
    ridge: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, ">= 1", "outer", "sample")
        check_fields(self, "> 0 GiB", "memory")
        check_fields(self, ">= 0", "ridge")

    @property
    def needs(self) -> Needs:
        return Needs(importance=self.weigh_outputs, through=True, safe=True, patterns=True, shares=True)

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        keep, d_in, settings = target.count(problem.W.numel()), len(problem.W), QUALITIES[self.quality]
        settings = replace(settings, ridge=self.ridge, retargets=self.outer or settings.retargets)
        # Rows of convolutions are short, and many of them look alike: as many as fit into the same room.
        sample = self.sample or max(4096, 8 * d_in, SAMPLE_VALUES // (d_in + problem.W.shape[1]))
        sample = min(sample, max(1024, int(self.memory * 2**28 / (d_in + 2 * problem.W.shape[1]))))
        needed, messages, more = GRAM_BYTES * d_in**2 / 2**30, [], {}
        if needed > self.memory:
            held = self._held(problem, sample)
            system = RowsSystem.of(held.A, problem.bias is not None)
            solve = solve_gram(system, StreamedTargets(replace(problem, stream=held)), keep, settings, target.pattern)
            more = {"held_rows": held.n_rows}
            reason = f"{d_in} inputs need {needed:.1f} GiB for a Gram matrix, over Feta.memory = {self.memory:g}"
            messages = [f"{reason}: solved on {held.n_rows} held rows without one"]
        else:
            sums = gram(problem.rows, with_bias=problem.bias is not None)
            best = self.quality == "best"
            reader = StreamedTargets(problem) if best else SampledTargets(problem, sums, sample)
            solve = solve_gram(
                GramSystem(sums.H, d_in, ranks_of(problem.rows)), reader, keep, settings, target.pattern
            )
        if solve.status is not Status.OK:
            messages = [f"the solver ended as {solve.status.value}", *messages]
        stats = {"objectives": solve.objectives, "iterations": solve.iterations, "damping": solve.damping}
        return problem.solved(solve.V, solve.status, "; ".join(messages), stats | more, target)

    def _held(self, problem: LayerProblem, sample: int) -> TensorStream:
        """As many rows as the memory has room for, up to the sample."""
        # m rows take m * width values for themselves and 2 m^2 for their products and its factor.
        width, values = problem.W.shape[0] + 2 * problem.W.shape[1], self.memory * 2**30 / 4
        room = int((math.sqrt(width**2 + 8 * values) - width) / 4)
        found: TensorStream = problem.rows.sampled(max(1, min(room, sample)))  # type: ignore[assignment]
        return found
