"""The engine under `prune`: the two networks in step, and one layer's turn.

Run        the original and the pruned network, the data, and where they live
LayerJob   a layer's rows, its problems (one per group), its place in the pruned model, its judge
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from feta.calibration.capture import LayerTap, LayerTrace, trace_layers
from feta.calibration.importance import output_importance
from feta.calibration.inputs import Inputs
from feta.calibration.model import clock, device_of, float_dtype
from feta.calibration.stream import HeldSource, LayerStream, ReplaySource, Source, SpilledSource
from feta.engine.select import prunable_names
from feta.errors import DataError, FetaError, ModelError
from feta.layers import LayerView
from feta.problem import Activation, LayerProblem, LayerSolution, Pruner, Status
from feta.report import LayerReport
from feta.solvers.refit import refit_dense
from feta.sparsity import Sparsity, measured, top_k_mask

Mode = Literal["cascade", "parallel"]
Cache = Literal["auto", "replay", "disk", "memory"]


@dataclass(frozen=True)
class PruneEvent:
    """Progress of a run, for callbacks: a layer starts, reports a step of its solve, or is done."""

    kind: Literal["start", "step", "done"]
    layer: str
    index: int
    total: int
    phase: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


Callback = Callable[[PruneEvent], None]


@dataclass(frozen=True)
class Run:
    """The two networks, the data, and where they live."""

    original: nn.Module
    pruned: nn.Module
    inputs: Inputs | None
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def start(cls, model: nn.Module, inputs: Inputs | None, device: str | torch.device | None) -> Run:
        home = device_of(model)
        where = torch.device(device) if device is not None else home
        dtype = float_dtype(model)
        original = model if where == home else _copy(model).to(where)
        return cls(original, _copy(original), inputs, where, dtype)

    def trace(self) -> list[LayerTrace]:
        """Every prunable layer in order of execution; without data, in the order of definition."""
        names = prunable_names(self.original)
        if self.inputs is None:
            return [LayerTrace(name) for name in names]
        return trace_layers(self.original, names, next(iter(self.inputs)), self.device, self.dtype)

    def importance(self, names: Sequence[str], seed: int) -> tuple[dict[str, Tensor], float]:
        """Weights for the outputs of the layers, and the seconds they took; {} without data."""
        if self.inputs is None:
            return {}, 0.0
        started = self.clock()
        batch = next(iter(self.inputs))
        found = output_importance(self.original, names, batch, self.device, self.dtype, seed=seed)
        # The square root: full weights starve the outputs that matter little, none spoil those that matter.
        return {
            name: (s / s.mean()).clamp_min(1e-4).sqrt() for name, s in found.items()
        }, self.clock() - started

    def tap(self, model: nn.Module, trace: LayerTrace) -> LayerTap:
        return LayerTap(model, trace.name, trace.calls, self.device, self.dtype)

    def clock(self) -> float:
        """Seconds, read after the device has finished its work."""
        return clock(self.device)


@dataclass(frozen=True)
class LayerJob:
    """One layer's turn."""

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
        pruned = self.run.tap(self.run.pruned, self.trace) if self.cascaded else None
        return ReplaySource(self.run.inputs, self.run.tap(self.run.original, self.trace), pruned)

    def problem(self, source: Source | None, group: int, trace: Any = None) -> LayerProblem:
        view = self.view
        stream = None if source is None else LayerStream(source, view, self.activation, group)
        W, bias = view.matrix(group), view.bias(group)
        weights = None if self.importance is None else self.importance.chunk(view.groups)[group]
        return LayerProblem(
            W,
            bias,
            stream,
            self.activation,
            self.cascaded,
            view.name,
            trace,
            weights,
            own_outputs=not self.cascaded,
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
                solutions.append(_checked(pruner.prune(problem, Sparsity(nonzeros=count)), problem, pruner))
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
            with _naming(self.view.name):
                solution = refit_dense(self.problem(source, group))
            self.view.write(solution.U, solution.bias, group)
            worst = worst if solution.status is Status.OK else solution.status
        return worst, self.run.clock() - started

    def _cached(self, source: Source | None, pruner: Pruner, cache: Cache) -> Source | None:
        if source is None or pruner.needs.passes == "none":
            return source
        if cache == "memory":
            return HeldSource.of(source)
        if cache == "disk" or (cache == "auto" and pruner.needs.passes == "many"):
            return SpilledSource.of(source, self.run.device)
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
            raise DataError(
                f"layer '{self.view.name}': outputs must be finite, got NaN or infinite ones on the data"
            )
        return (wrong / right) ** 0.5 if right > 0 else float(wrong > 0)


@contextmanager
def _naming(layer: str) -> Iterator[None]:
    """Errors from inside carry the layer's name, once."""
    try:
        yield
    except FetaError as error:
        if str(error).startswith(f"{layer}: "):
            raise
        raise type(error)(f"layer '{layer}': {error}") from error


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise ModelError(
            f"model must be one that copy.deepcopy can copy, got: {error}; weights under torch.nn.utils.prune "
            "or an old weight_norm must be made plain first (prune.remove, remove_weight_norm)"
        ) from error


def _checked(solution: LayerSolution, problem: LayerProblem, pruner: Pruner) -> LayerSolution:
    """A method's answer, which must fit the layer; methods of users come through here too."""
    U = getattr(solution, "U", None)
    if not isinstance(U, Tensor) or U.shape != problem.W.shape or not bool(torch.isfinite(U).all()):
        got = (
            f"{tuple(U.shape)}, finite: {bool(torch.isfinite(U).all())}" if isinstance(U, Tensor) else type(U)
        )
        raise ModelError(f"method '{pruner.name}' must give finite U {tuple(problem.W.shape)}, got {got}")
    return solution


def _group_counts(view: LayerView, target: Sparsity) -> list[int]:
    """Non-zeros for each group of a layer: as many as the group has of the layer's largest weights."""
    keep = target.count(view.weight.numel())
    if view.groups == 1:
        return [keep]
    mask = top_k_mask(view.weight.detach().abs(), keep)
    return [int(part.sum()) for part in mask.chunk(view.groups)]
