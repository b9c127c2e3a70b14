"""prune: walk a model's layers in order of execution, stream rows, solve each layer, write it back.

    cascade    A comes from the network pruned so far, B from the original: errors do not add up
    parallel   both come from the original network: layers are independent of each other

The model that is given is never changed; the result holds a pruned copy with exact zeros. Memory beyond
the two models is that of one batch's activations, one chunk of rows and the method's own matrices
(d_in^2 for those that use a Gram matrix); it does not grow with the number of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.allocation import MEASURED, check_allocation
from feta.allocation.budget import Curve
from feta.allocation.measure import Probe
from feta.calibration.batchnorm import reestimate
from feta.calibration.capture import LayerTrace
from feta.calibration.inputs import Inputs
from feta.calibration.model import device_of, evaluating
from feta.calibration.stream import TensorStream
from feta.engine.run import Cache, Callback, Mode, PruneEvent, Run
from feta.engine.select import SparsityRequest, check_untied, select, targets
from feta.engine.walk import Walk, parse_activation
from feta.errors import ConfigError, unknown_name
from feta.layers import LayerView
from feta.problem import LayerProblem, LayerSolution, Pruner
from feta.pruners import make, options_of
from feta.report import AllocationReport, PruneReport, RefinePoint, RefineReport
from feta.sparsity import Sparsity
from feta.tuning.refine import Refinement
from feta.tuning.refine import refine as refine_model

DEFAULT_METHOD = "feta"


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
    method: str | Pruner = DEFAULT_METHOD,
    *,
    options: Mapping[str, Any] | None = None,
    layers: Sequence[str] | str | None = None,
    mode: Mode = "cascade",
    allocation: str = "uniform",
    activation: str | Mapping[str, str] | None = None,
    compensate: bool = False,
    batchnorm: bool = False,
    refine: bool | Refinement | None = False,
    n_samples: int | None = None,
    batch_size: int = 1000,
    cache: Cache = "auto",
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callback | None = None,
) -> PruneResult:
    """A copy of `model` with `sparsity` of the weights of its layers set to zero, and a report.

    data: unlabelled inputs: a tensor or any iterable of tensors, (x, y) pairs or dicts. Only `threshold`
        works without.
    sparsity: a share in [0, 1), or {layer pattern: share}.
    method: a name out of `feta methods`, with its `options`, or a Pruner object.
    layers: names or patterns; by default every Linear but the last.
    allocation: how a single share is spread over layers, a name out of feta.allocation; `sensitivity` and
        `bound` measure each layer on a part of the data first.
    activation: "relu" or "linear" for all layers, or {layer pattern: …}; by default found by tracing.
    compensate: refit the unpruned layer after a pruned one to its original outputs.
    batchnorm: re-estimate the batch-norm statistics of the pruned model.
    refine: fit the surviving weights to the original's outputs at the end, see `feta.refine`; True, or a
        `feta.Refinement`.
    cache: where rows wait between passes. "auto" runs the network again on each pass, or keeps rows in a
        memory-mapped file for methods of many passes; "memory" holds them on the device.
    """
    for label, value, known in (
        ("mode", mode, ("cascade", "parallel")),
        ("cache", cache, ("auto", "replay", "disk", "memory")),
    ):
        if value not in known:
            raise unknown_name(label, value, known)
    if not isinstance(refine, bool | Refinement | None):
        raise ConfigError(f"refine must be True, False or a feta.Refinement, got {refine!r}")
    pruner = _with_seed(make(method, options), method, options, seed)
    if data is None and (pruner.passes != "none" or compensate or batchnorm or refine):
        need = f"method '{pruner.name}'" if pruner.passes != "none" else "compensate, batchnorm and refine"
        raise ConfigError(f"data must be given for {need}, got None")
    if check_allocation(allocation) in MEASURED and data is None:
        raise ConfigError(f"data must be given for allocation '{allocation}', got None")
    inputs = None if data is None else Inputs(data, batch_size=batch_size, n_samples=n_samples, seed=seed)
    run = Run.start(model, inputs, device)
    with evaluating(run.original, run.pruned):
        traces = run.trace()
        chosen = select(run.original, [trace.name for trace in traces], layers)
        check_untied(run.original, chosen)
        goals, allocated = _allocate(run, traces, chosen, sparsity, allocation)
        walk = Walk(run, goals, pruner, mode, cache, activation, callback, seed)
        reports, compensated, seconds = walk.over(traces, compensate)
        if batchnorm and inputs is not None:
            reestimate(run.pruned, inputs, run.device, run.dtype)
    views = [LayerView(run.pruned.get_submodule(name), name) for name in goals]
    pruned, refinement = run.pruned, None
    if refine:
        how = refine if isinstance(refine, Refinement) else Refinement()
        rows = data if isinstance(data, Tensor) else inputs  # an iterator has been read by now
        pruned, refinement = _refine(how, run, views, rows, n_samples, seed, callback)
    report = PruneReport(
        method=pruner.name,
        target_sparsity=dict(sparsity) if isinstance(sparsity, Mapping) else float(sparsity),
        sparsity=1 - sum(layer.nonzeros for layer in reports) / sum(view.weight.numel() for view in views),
        seconds=seconds,
        device=str(run.device),
        seed=seed,
        options=options_of(pruner),
        layers=tuple(reports),
        compensated=compensated,
        allocation=allocated,
        refinement=refinement,
    )
    home = device_of(model)
    masks = {view.name: (view.weight.detach() != 0).to(home) for view in views}
    return PruneResult(pruned.to(home), masks, report)


def _refine(
    how: Refinement,
    run: Run,
    views: Sequence[LayerView],
    rows: Any,
    n_samples: int | None,
    seed: int,
    callback: Callback | None,
) -> tuple[nn.Module, RefineReport]:
    """The pruned network after refinement; events carry its loss."""

    def tell(point: RefinePoint) -> None:
        if callback is not None:
            values = {"passes": point.passes, "loss": point.loss}
            callback(PruneEvent("step", "all layers", len(views), len(views), "refine", values))

    masks = {view.name: view.weight.detach() != 0 for view in views}
    result = refine_model(
        run.pruned, run.original, rows, how, masks=masks, n_samples=n_samples, seed=seed, callback=tell
    )
    return result.model, result.report


def smart_prune(
    W: Tensor,
    A: Tensor,
    B: Tensor,
    *,
    sparsity: float | Sparsity = 0.9,
    method: str | Pruner = DEFAULT_METHOD,
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
    problem = LayerProblem(W, bias, stream, parse_activation(activation))
    target = sparsity if isinstance(sparsity, Sparsity) else Sparsity(sparsity)
    return make(method, options).prune(problem, target)


def _with_seed(pruner: Pruner, method: str | Pruner, options: Mapping[str, Any] | None, seed: int) -> Pruner:
    """The run's seed becomes the method's, unless the caller has set that one."""
    given = not isinstance(method, str) or (options is not None and "seed" in options)
    return pruner if given or not hasattr(pruner, "seed") else replace(pruner, seed=seed)  # type: ignore[type-var]


def _allocate(
    run: Run,
    traces: Sequence[LayerTrace],
    chosen: Sequence[str],
    sparsity: SparsityRequest,
    allocation: str,
) -> tuple[dict[str, Sparsity], AllocationReport]:
    """A target for each layer to prune, and how it was found."""

    def measure() -> dict[str, Curve]:
        if run.inputs is None:  # pragma: no cover - refused at the gate
            raise ConfigError(f"data must be given for allocation '{allocation}', got None")
        probe = Probe.of(run.original, run.pruned, run.inputs, run.device, run.dtype)
        return probe.curves(allocation, traces, chosen)

    started = run.clock()
    goals = targets(run.original, chosen, sparsity, allocation, measure)
    sizes = {name: LayerView(run.original.get_submodule(name), name).weight.numel() for name in goals}
    kept = {name: goal.count(sizes[name]) / sizes[name] for name, goal in goals.items()}
    name = "per-layer" if isinstance(sparsity, Mapping) else allocation
    return goals, AllocationReport(name, run.clock() - started, kept)
