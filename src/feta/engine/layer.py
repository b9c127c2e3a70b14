"""One layer's turn: its rows, its problems (one per group), its solution, and what that costs in accuracy."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feta.calibration.capture import LayerTrace
from feta.calibration.spill import Spill
from feta.calibration.stream import KeptSource, LayerStream, ReplaySource, Source
from feta.engine.run import Run
from feta.engine.settings import Cache
from feta.errors import DataError, FetaError, ModelError
from feta.layers import LayerView
from feta.problem import Activation, LayerProblem, LayerSolution, Pruner, Status
from feta.report import LayerReport
from feta.solvers.refit import refit_dense
from feta.sparsity import Sparsity, measured, top_k_mask


@dataclass(frozen=True)
class LayerJob:
    """What is known of a layer before it is pruned."""

    run: Run
    trace: LayerTrace
    activation: Activation
    cascaded: bool  # its inputs come from the pruned network, and earlier layers are pruned already
    importance: Tensor | None = None  # of the layer's outputs, all groups

    @property
    def view(self) -> LayerView:
        return LayerView(self.run.pruned.get_submodule(self.trace.name), self.trace.name)

    def source(self) -> Source | None:
        if self.run.inputs is None:
            return None
        pruned = self.trace.tap(self.run.pruned) if self.cascaded else None
        return ReplaySource(self.run.inputs, self.trace.tap(self.run.original), pruned)

    def problem(self, source: Source | None, group: int, trace: Any = None) -> LayerProblem:
        view = self.view
        stream = None if source is None else LayerStream(source, view, self.activation, group)
        weights = None if self.importance is None else self.importance.chunk(view.groups)[group]
        W, bias = view.matrix(group), view.bias(group)
        return LayerProblem(
            W, bias, stream, self.activation, self.cascaded, view.name, trace, weights, own_outputs=not self.cascaded
        )

    def prune(self, pruner: Pruner, target: Sparsity, cache: Cache, tell: Callable[..., None]) -> LayerReport:
        """Solve every group of the layer, write it back, and measure what came of it."""
        view = self.view
        started = self.run.clock()
        rows = self._cached(self.source(), pruner, cache)
        solutions = []
        with _naming(view.name):
            for group, count in enumerate(_group_counts(view, target)):
                problem = self.problem(rows, group, lambda phase, values: tell("step", phase, values))
                promised = min(count, int(problem.W.count_nonzero()))  # a weight that was zero may stay zero
                solution = pruner.prune(problem, Sparsity(nonzeros=count))
                check(solution, problem, pruner, count, promised)
                solutions.append(solution)
        for group, solution in enumerate(solutions):
            view.write(solution.U, solution.bias, group)
        seconds = self.run.clock() - started
        worst = next((s for s in solutions if s.status is not Status.OK), solutions[0])
        weight = view.weight.detach()
        return LayerReport(
            name=view.name,
            shape=tuple(weight.shape),
            nonzeros=int(torch.count_nonzero(weight)),
            sparsity=measured(weight),
            relative_error=None if rows is None else self._relative_error(rows, solutions),
            seconds=seconds,
            activation=self.activation.value,
            status=worst.status.value,
            message=worst.message,
            stats=dict(worst.stats),
        )

    def compensate(self) -> tuple[Status, float]:
        """Refit this unpruned layer to its original outputs: how that ended, and the seconds it took."""
        started = self.run.clock()
        source, worst = self.source(), Status.OK
        for group in range(self.view.groups):
            with _naming(self.trace.name):
                solution = refit_dense(self.problem(source, group))
            self.view.write(solution.U, solution.bias, group)
            worst = worst if solution.status is Status.OK else solution.status
        return worst, self.run.clock() - started

    def _cached(self, source: Source | None, pruner: Pruner, cache: Cache) -> Source | None:
        if source is None or pruner.needs.passes == "none":
            return source
        if cache == "memory":
            return KeptSource([(x.clone(), z.clone()) for x, z in source.pairs()], self.run.device)
        if cache == "disk" or (cache == "auto" and pruner.needs.passes == "many"):
            return KeptSource(Spill(source.pairs()), self.run.device)
        return source

    def _relative_error(self, source: Source, solutions: Sequence[LayerSolution]) -> float:
        """||rho(A U + bias) - B||_F / ||B||_F over all rows: the one judge of every method."""
        wrong = right = 0.0
        for group, solution in enumerate(solutions):
            for A, B in LayerStream(source, self.view, self.activation, group).chunks():
                Z = A @ solution.U if solution.bias is None else torch.addmm(solution.bias, A, solution.U)
                wrong += float((self.activation(Z) - B).square().sum(dtype=torch.float64))
                right += float(B.square().sum(dtype=torch.float64))
        if not math.isfinite(wrong + right):
            raise DataError(f"layer '{self.view.name}': outputs must be finite, got NaN or infinite ones on the data")
        return (wrong / right) ** 0.5 if right > 0 else float(wrong > 0)


def check(solution: LayerSolution, problem: LayerProblem, pruner: Pruner, count: int, promised: int) -> None:
    """Hold a method to its contract. Raises ModelError that names the method and what it broke."""
    if not isinstance(solution, LayerSolution):
        raise ModelError(f"method '{pruner.name}' must give a LayerSolution, got {type(solution).__name__}")
    for label, got, like in (("U", solution.U, problem.W), ("bias", solution.bias, problem.bias)):
        if _form(got) != _form(like):
            raise ModelError(f"method '{pruner.name}' must give {label} {_form(like)}, got {_form(got)}")
        bad = 0 if got is None else int((~torch.isfinite(got)).sum())
        if bad:
            raise ModelError(f"method '{pruner.name}' must give finite {label}, got {bad} NaN or infinite entries")
    kept = int(torch.count_nonzero(solution.U))
    if kept > count and pruner.needs.count != "own":
        raise ModelError(f"method '{pruner.name}' must keep at most {count} weights, got {kept}")
    if promised > 0 and kept == 0:
        raise ModelError(f"method '{pruner.name}' must not give zeros alone where {count} weights may stay")
    if pruner.needs.count == "exact" and kept < promised:
        raise ModelError(f"method '{pruner.name}' must keep exactly {promised} weights, got {kept}")


def _form(value: Any) -> str:
    is_tensor = isinstance(value, Tensor)
    return f"{tuple(value.shape)} {value.dtype} on {value.device}" if is_tensor else type(value).__name__


@contextmanager
def _naming(layer: str) -> Iterator[None]:
    """Errors from inside carry the layer's name, once."""
    try:
        yield
    except FetaError as error:
        if str(error).startswith(f"{layer}: "):
            raise
        raise type(error)(f"layer '{layer}': {error}") from error


def _group_counts(view: LayerView, target: Sparsity) -> list[int]:
    """Non-zeros for each group of a layer: as many as the group has of the layer's largest weights."""
    keep = target.count(view.weight.numel())
    if view.groups == 1:
        return [keep]
    mask = top_k_mask(view.weight.detach().abs(), keep)
    return [int(part.sum()) for part in mask.chunk(view.groups)]
