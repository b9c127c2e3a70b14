"""Every layer refitted to its original outputs, from the inputs that are left and as the narrower network gives them.

    V = argmin ||rho(A~ V + R) - rho(Z)||^2 + r ||V - W~||^2      over V that is zero for the inputs that are gone

A are the inputs in the network refitted so far, Z the original's outputs behind batch-norm and shortcut. The ridge r
is the one that does best on held-out rows; trained weights with a bias that makes up for the mean of what is gone are
a choice too, for layers with too few rows for anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feta.calibration.fold import Folded
from feta.calibration.statistics import gram
from feta.calibration.stream import LayerStream
from feta.engine.judge import Choice, errors_of
from feta.engine.layer import LayerJob, naming
from feta.problem import Activation, LayerProblem
from feta.solvers.refit import factor
from feta.solvers.targets import SampledTargets
from feta.structured.choice import input_rows

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # of the mean of H's diagonal
RETARGETS = 3
SAMPLE_VALUES = 2**22  # entries of the rows that targets behind an activation are read from


@dataclass
class Refit:
    """What becomes of each layer."""

    inputs: Mapping[str, Tensor]  # layer -> channels of its input that are gone
    outputs: Mapping[str, Tensor]  # layer -> its outputs that are gone, which count for nothing
    weights: Mapping[str, Tensor]  # layer -> how much its outputs matter
    errors: dict[str, float] = field(default_factory=dict)  # layer -> relative error on held-out rows

    def __call__(self, job: LayerJob) -> None:
        """One layer's turn."""
        if job.sources is None:
            return
        frames = job.frames(through=True)
        with naming(job.trace.name):
            found = [self._solved(job, frame) for frame in frames]
            choices = [Choice(frames, weights) for weights in zip(*found, strict=True)]
            streams = [LayerStream(job.sources[1], frame.view, frame.through, frame.group) for frame in frames]
            errors = errors_of(choices, frames, streams, self._weights(job))
            best = min(range(len(errors)), key=lambda index: errors[index].weighted)
            choices[best].write()
        self.errors[job.trace.name] = errors[best].weighted

    def _weights(self, job: LayerJob) -> Tensor:
        """Of the layer's outputs, by which its refits are compared."""
        found = self.weights.get(job.trace.name, torch.ones(job.view.d_out)).clone()
        if job.trace.name in self.outputs:
            found[self.outputs[job.trace.name].to(found.device)] = 0
        return found

    def _solved(self, job: LayerJob, frame: Folded) -> list[tuple[Tensor, Tensor | None]]:
        """The weights and bias of one group of a layer: as trained, and refitted with each ridge."""
        problem, view = job.problem(frame), frame.view
        kept = torch.ones(len(problem.W), dtype=torch.bool, device=problem.W.device)
        lost = self.inputs.get(job.trace.name)
        if lost is not None and len(lost):
            kept[input_rows(view, lost.to(kept.device), frame.group).flatten()] = False
        sums = gram(problem.rows, with_bias=problem.bias is not None)
        values = len(problem.W) + problem.W.shape[1]
        reader = SampledTargets(problem, sums, max(4096, SAMPLE_VALUES // values))
        return [_trained(problem, sums.H, kept), *(_refitted(problem, reader, kept, ridge) for ridge in RIDGES)]


def _trained(problem: LayerProblem, H: Tensor, kept: Tensor) -> tuple[Tensor, Tensor | None]:
    """The trained weights of what is left; the bias makes up for the mean of what is gone."""
    U = problem.W * kept[:, None]
    if problem.bias is None:
        return U, None
    mean = (H[-1, :-1] / H[-1, -1]).to(U.dtype)
    return U, problem.bias + mean @ (problem.W - U)


def _refitted(
    problem: LayerProblem, reader: SampledTargets, kept: Tensor, ridge: float
) -> tuple[Tensor, Tensor | None]:
    """Least squares with moving targets on the inputs that are left, a step kept only where it helps."""
    H, trained, d_in = reader.statistics.H, problem.trained.double(), len(problem.W)
    inside = torch.cat([kept, kept.new_ones(len(H) - d_in)]).nonzero()[:, 0]
    solver = factor(H[inside[:, None], inside], ridge)

    def solve(C: Tensor) -> Tensor:
        V = torch.zeros_like(trained)
        V[inside] = solver.solve(C[inside] + solver.damping * trained[inside])
        return V.to(problem.W.dtype)

    V = solve(reader.start())
    if problem.activation is not Activation.LINEAR:
        value, C = reader.at(V)
        for _ in range(RETARGETS):
            trial = solve(C)
            found, C = reader.at(trial)
            if found >= value:
                break
            V, value = trial, found
    solution = problem.solved(V)
    return solution.U, solution.bias
