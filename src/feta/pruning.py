"""prune: walk a model's layers in order of execution, stream rows, solve each layer, write it back.

    cascade    A comes from the network pruned so far, B from the original: errors do not add up
    parallel   both come from the original network: layers are independent of each other

The model that is given is never changed; the result holds a pruned copy with exact zeros. Memory beyond
the two models is that of one batch's activations, one chunk of rows and the method's own matrices
(d_in^2 for those that use a Gram matrix); it does not grow with the number of samples.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from feta.calibration.batchnorm import reestimate
from feta.calibration.capture import LayerTap, LayerTrace, evaluating, trace_layers
from feta.calibration.inputs import Inputs
from feta.calibration.stream import HeldSource, LayerStream, ReplaySource, Source, SpilledSource, TensorStream
from feta.errors import ConfigError, FetaError, unknown_name
from feta.layers import LayerView
from feta.problem import Activation, LayerProblem, LayerSolution, Pruner, Status
from feta.pruners import make, options_of
from feta.report import LayerReport, PruneReport
from feta.selection import SparsityRequest, prunable_names, select, targets
from feta.solvers.refit import refit_dense
from feta.sparsity import Sparsity, measured, top_k_mask

Mode = Literal["cascade", "parallel"]
Cache = Literal["auto", "replay", "disk", "memory"]
MODES, CACHES = ("cascade", "parallel"), ("auto", "replay", "disk", "memory")


@dataclass(frozen=True)
class PruneEvent:
    """Progress of a run, for callbacks: a layer starts, is done, or reports a step of its solve."""

    kind: Literal["start", "step", "done"]
    layer: str
    index: int
    total: int
    phase: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PruneResult:
    """A pruned copy of the model, the masks of its pruned weights, and the report."""

    model: nn.Module
    masks: dict[str, Tensor]  # layer name -> bool, the shape of the layer's weight
    report: PruneReport

    def __repr__(self) -> str:
        return repr(self.report)


def prune(
    model: nn.Module,
    data: Any = None,
    sparsity: SparsityRequest = 0.9,
    method: str | Pruner = "threshold",
    *,
    options: Mapping[str, Any] | None = None,
    layers: Sequence[str] | str | None = None,
    mode: Mode = "cascade",
    allocation: str = "uniform",
    activation: str | Mapping[str, str] | None = None,
    compensate: bool = False,
    batchnorm: bool = False,
    n_samples: int | None = None,
    batch_size: int = 1000,
    cache: Cache = "auto",
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[PruneEvent], None] | None = None,
) -> PruneResult:
    """A copy of `model` with `sparsity` of the weights of its layers set to zero, and a report.

    data: unlabelled inputs; a tensor or any iterable of tensors, (x, y) pairs or dicts. Only `threshold`
        works without.
    sparsity: a share in [0, 1), or {layer pattern: share}.
    method: a name out of `feta methods`, with its `options`, or a Pruner object.
    layers: names or patterns; by default every Linear but the last.
    activation: "relu" or "linear" for all layers or by {layer pattern: …}; by default found by tracing.
    compensate: refit the unpruned layer after a pruned one to its original outputs.
    batchnorm: re-estimate the batch-norm statistics of the pruned model.
    cache: where rows wait between passes; "auto" runs the network again, or uses disk for methods of many passes.
    """
    for label, value, known in (("mode", mode, MODES), ("cache", cache, CACHES)):
        if value not in known:
            raise unknown_name(label, value, known)
    pruner = _with_seed(make(method, options), method, options, seed)
    if data is None and (pruner.passes != "none" or compensate or batchnorm):
        need = f"method '{pruner.name}'" if pruner.passes != "none" else "compensate and batchnorm"
        raise ConfigError(f"data must be given for {need}, got None")
    run = _Run.start(model, data, batch_size, n_samples, seed, device)
    with evaluating(run.original, run.pruned):
        traces = run.trace()
        chosen = select(run.original, [t.name for t in traces], layers)
        goals = targets(run.original, chosen, sparsity, allocation)
        reports, compensated = [], []
        seconds = 0.0
        previous_pruned = False
        for trace in traces:
            if trace.name in goals:
                job = _LayerJob(run, trace, _activation_of(trace, activation), mode, bool(reports))
                report = job.prune(pruner, goals[trace.name], cache, callback, len(reports), len(goals))
                reports.append(report)
                seconds += report.seconds
            elif compensate and previous_pruned:
                seconds += _LayerJob(run, trace, Activation.LINEAR, mode, True).compensate()
                compensated.append(trace.name)
            previous_pruned = trace.name in goals
        if batchnorm and run.inputs is not None:
            reestimate(run.pruned, run.inputs, run.device, run.dtype)
    views = [LayerView(run.pruned.get_submodule(name), name) for name in goals]
    total = sum(view.weight.numel() for view in views)
    report = PruneReport(
        method=pruner.name,
        target_sparsity=dict(sparsity) if isinstance(sparsity, Mapping) else float(sparsity),
        sparsity=1 - sum(layer.nonzeros for layer in reports) / total,
        seconds=seconds,
        device=str(run.device),
        seed=seed,
        options=options_of(pruner),
        layers=tuple(reports),
        compensated=tuple(compensated),
    )
    home = _device_of(model)
    masks = {view.name: (view.weight.detach() != 0).to(home) for view in views}
    return PruneResult(run.pruned.to(home), masks, report)


def smart_prune(
    W: Tensor,
    A: Tensor,
    B: Tensor,
    *,
    sparsity: float | Sparsity = 0.9,
    method: str | Pruner = "threshold",
    activation: str = "relu",
    bias: Tensor | None = None,
    options: Mapping[str, Any] | None = None,
    chunk_rows: int = 8192,
) -> LayerSolution:
    """SmartPrune(W, A, B) -> U for one layer held as tensors: W (d_in, d_out), samples as rows of A and B."""
    if A.shape[1:] != W.shape[:1] or B.shape[1:] != W.shape[1:]:
        shapes = f"W {tuple(W.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}"
        raise ConfigError(f"A must be (m, d_in) and B (m, d_out) for W (d_in, d_out), got {shapes}")
    stream = TensorStream(A.to(W.dtype), B.to(W.dtype), chunk_rows)
    problem = LayerProblem(W, bias, stream, _parse_activation(activation))
    target = sparsity if isinstance(sparsity, Sparsity) else Sparsity(sparsity)
    return make(method, options).prune(problem, target)


@dataclass(frozen=True)
class _Run:
    """The two networks, the data, and where they live."""

    original: nn.Module
    pruned: nn.Module
    inputs: Inputs | None
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def start(
        cls,
        model: nn.Module,
        data: Any,
        batch_size: int,
        n_samples: int | None,
        seed: int,
        device: str | torch.device | None,
    ) -> _Run:
        home = _device_of(model)
        where = torch.device(device) if device is not None else home
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        original = model if where == home else copy.deepcopy(model).to(where)
        inputs = None if data is None else Inputs(data, batch_size=batch_size, n_samples=n_samples, seed=seed)
        return cls(original, copy.deepcopy(original), inputs, where, dtype)

    def trace(self) -> list[LayerTrace]:
        names = prunable_names(self.original)
        if self.inputs is None:
            return [LayerTrace(name) for name in names]
        return trace_layers(self.original, names, next(iter(self.inputs)), self.device, self.dtype)

    def tap(self, model: nn.Module, trace: LayerTrace) -> LayerTap:
        return LayerTap(model, trace.name, trace.calls, self.device, self.dtype)


@dataclass(frozen=True)
class _LayerJob:
    """One layer's turn: its rows, its problems (one per group), its place in the pruned model."""

    run: _Run
    trace: LayerTrace
    activation: Activation
    mode: Mode
    after_pruned: bool  # an earlier layer is pruned already

    @property
    def view(self) -> LayerView:
        return LayerView(self.run.pruned.get_submodule(self.trace.name), self.trace.name)

    @property
    def cascaded(self) -> bool:
        return self.mode == "cascade" and self.after_pruned

    def source(self) -> Source | None:
        if self.run.inputs is None:
            return None
        pruned = self.run.tap(self.run.pruned, self.trace) if self.cascaded else None
        return ReplaySource(self.run.inputs, self.run.tap(self.run.original, self.trace), pruned)

    def problem(self, source: Source | None, group: int, trace: Any = None) -> LayerProblem:
        view = self.view
        stream = None if source is None else LayerStream(source, view, self.activation, group)
        return LayerProblem(
            view.matrix(group), view.bias(group), stream, self.activation, self.cascaded, view.name, trace
        )

    def prune(
        self,
        pruner: Pruner,
        target: Sparsity,
        cache: Cache,
        callback: Callable[[PruneEvent], None] | None,
        index: int,
        total: int,
    ) -> LayerReport:
        """Solve every group of the layer, write it back, and measure what came of it."""
        view = self.view

        def tell(
            kind: Literal["start", "step", "done"], phase: str = "", values: Mapping[str, float] | None = None
        ) -> None:
            if callback is not None:
                callback(PruneEvent(kind, view.name, index, total, phase, values or {}))

        tell("start")
        started = _clock(self.run.device)
        source = self.source()
        rows = self._cached(source, pruner, cache)
        solutions = []
        try:
            for group, count in enumerate(_group_counts(view, target)):
                problem = self.problem(rows, group, lambda phase, values: tell("step", phase, values))
                solutions.append(pruner.prune(problem, Sparsity(nonzeros=count)))
        except FetaError as error:
            raise type(error)(f"layer '{view.name}': {error}") from error
        seconds = _clock(self.run.device) - started
        for group, solution in enumerate(solutions):
            view.write(solution.U, solution.bias, group)
        worst = next((s for s in solutions if s.status is not Status.OK), solutions[0])
        weight = view.weight.detach()
        report = LayerReport(
            name=view.name,
            shape=tuple(weight.shape),
            nonzeros=int(torch.count_nonzero(weight)),
            sparsity=measured(weight),
            relative_error=None if rows is None else self._relative_error(rows, solutions),
            seconds=seconds,
            status=worst.status.value,
            message=worst.message,
            stats=dict(worst.stats),
        )
        tell("done")
        return report

    def compensate(self) -> float:
        """Refit this unpruned layer to its original outputs; the seconds it took."""
        started = _clock(self.run.device)
        source = self.source()
        for group in range(self.view.groups):
            solution = refit_dense(self.problem(source, group))
            self.view.write(solution.U, solution.bias, group)
        return _clock(self.run.device) - started

    def _cached(self, source: Source | None, pruner: Pruner, cache: Cache) -> Source | None:
        if source is None or pruner.passes == "none":
            return source
        if cache == "memory":
            return HeldSource.of(source)
        if cache == "disk" or (cache == "auto" and pruner.passes == "many"):
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
        return (wrong / right) ** 0.5 if right > 0 else float(wrong > 0)


def _with_seed(pruner: Pruner, method: str | Pruner, options: Mapping[str, Any] | None, seed: int) -> Pruner:
    """The run's seed becomes the method's, unless the caller has set that one."""
    given = not isinstance(method, str) or (options is not None and "seed" in options)
    return pruner if given or not hasattr(pruner, "seed") else replace(pruner, seed=seed)  # type: ignore[type-var]


def _group_counts(view: LayerView, target: Sparsity) -> list[int]:
    """Non-zeros for each group of a layer: as many as the group has of the layer's largest weights."""
    keep = target.count(view.weight.numel())
    if view.groups == 1:
        return [keep]
    mask = top_k_mask(view.weight.detach().abs(), keep)
    return [int(part.sum()) for part in mask.chunk(view.groups)]


def _activation_of(trace: LayerTrace, given: str | Mapping[str, str] | None) -> Activation:
    if given is None:
        return trace.activation
    if isinstance(given, str):
        return _parse_activation(given)
    found = next((value for pattern, value in given.items() if fnmatchcase(trace.name, pattern)), None)
    return trace.activation if found is None else _parse_activation(found)


def _parse_activation(name: str) -> Activation:
    if name not in list(Activation):
        raise unknown_name("activation", name, list(Activation))
    return Activation(name)


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
