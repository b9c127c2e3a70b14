"""prune: walk a model's layers in order of execution, stream rows, solve each layer, write it back.

The model that is given is never changed. Beyond it and its copy, memory holds one batch's activations, one chunk of
rows, the method's own matrices (d_in^2 for a Gram matrix), and what waits between passes: Settings.memory at the
most for each such thing, however many samples there are.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.allocation import Allocation, make_allocation
from feta.allocation.measure import Probe
from feta.calibration.model import device_of, fused_attention_off
from feta.calibration.stream import TensorStream
from feta.engine.finish import Stages, settle_batchnorm, size_of_model, warn_of
from feta.engine.run import Run
from feta.engine.select import SparsityRequest, select, skipped, targets
from feta.engine.settings import Callback, Settings, checked, parse_activation
from feta.engine.walk import Walk
from feta.errors import ConfigError
from feta.layers import weight_of
from feta.problem import LayerProblem, LayerSolution, Pruner
from feta.pruners import make, options_of
from feta.report import AllocationReport, PruneReport
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
    allocation: str | Allocation = "uniform",
    compensate: bool = False,
    refine: bool | Refinement = False,
    seed: int = 0,
    device: str | torch.device | None = None,
    settings: Settings | None = None,
    callback: Callback | None = None,
) -> PruneResult:
    """Prune a copy of a trained model without retraining it.

        result = feta.prune(model, images, 0.9)
        print(result.report)
        feta.save(result.model, "pruned.safetensors")

    model: any nn.Module; it is not changed.
    data: unlabelled inputs: a tensor with samples as rows, a dict of them, or any iterable of tensors, (x, y) pairs
        or dicts, a DataLoader included. Only `threshold` works without.
    sparsity: the share of zero weights in [0, 1), or {layer pattern: share}.
    method: a name out of `feta methods`, or a Pruner object such as feta.pruners.Alps().
    options: of a method that is given by its name.
    layers: names or shell patterns of the layers to prune; by default all that can be, but for convolutions that
        read the model's input, layers whose outputs are the model's, and weights that are more than a layer's.
    allocation: how one share is spread over the layers: a name out of feta.allocation, or an object.
    compensate: whether the unpruned layer after a pruned one is refitted to its original outputs.
    refine: whether the surviving weights are fitted to the original's outputs at the end; True, or how.
    seed: for everything that is drawn at random.
    device: where to work; by default where the model is. The result comes back to the model's own device.
    settings: what few people change, see `feta.Settings`.
    callback: called with a PruneEvent as layers start, take steps and are done.

    Returns a PruneResult: the pruned model, its masks and the report.
    Raises ConfigError for arguments that cannot be, DataError for data that cannot be used, and ModelError for
    models or layers that cannot be pruned.
    """
    how = checked(settings)
    pruner = make(method, options)
    if pruner.needs.seed and isinstance(method, str) and "seed" not in (options or {}):
        pruner = replace(pruner, seed=seed)  # type: ignore[type-var]
    spread = make_allocation(allocation)
    if not isinstance(refine, bool | Refinement):
        raise ConfigError(f"refine must be True, False or a feta.Refinement, got {refine!r}")
    if data is None and pruner.needs.passes != "none":
        raise ConfigError(f"data must be given for method '{pruner.name}', got None")
    if data is None and spread.needs_data:
        raise ConfigError(f"data must be given for allocation '{spread.name}', got None")
    if data is None and (compensate or how.batchnorm or refine):
        raise ConfigError("data must be given for compensate, batchnorm and refine, got None")
    started = time.perf_counter()
    with fused_attention_off():
        run = Run.start(model, data, how, device, seed)
        stages = Stages(started, run.clock)
        stages.end("trace")
        chosen = select(run.original, run.layers, layers)
        goals, allocated = _allocate(run, chosen, sparsity, spread)
        stages.end("allocation")
        before = size_of_model(run.pruned, run.layers)
        walk = Walk(run, goals, pruner, compensate, callback, seed)
        walk.over()
        stages.end("layers")
        said = settle_batchnorm(run)
        stages.end("batchnorm")
    masks = {name: weight_of(run.result, name).detach() != 0 for name in goals}
    after = size_of_model(run.pruned, run.layers)
    pruned, refinement = run.result, None
    if refine:
        wanted = refine if isinstance(refine, Refinement) else None
        rows = data if isinstance(data, Tensor) else run.samples
        given: dict[str, Any] = {"masks": masks, "n_samples": how.n_samples, "seed": seed}
        refined = refine_model(pruned, run.original, rows, wanted, **given, callback=walk.tell_loss)
        pruned, refinement = refined.model, refined.report
        stages.end("refinement")
    home = device_of(model)
    pruned = pruned.to(home)
    stages.end("rest")
    report = PruneReport(
        method=pruner.name,
        target_sparsity=dict(sparsity) if isinstance(sparsity, Mapping) else float(sparsity),
        sparsity=1 - sum(layer.nonzeros for layer in walk.reports) / sum(mask.numel() for mask in masks.values()),
        seconds=sum(stages.parts.values()),
        device=str(run.device),
        seed=seed,
        options=options_of(pruner),
        layers=tuple(walk.reports),
        compensated=walk.compensated,
        allocation=allocated,
        refinement=refinement,
        before=before,
        after=after,
        skipped=skipped(run.original, run.layers, list(goals), layers is None),
        segments=len(run.chain.segments(run.layers)),
        batchnorm=said,
        parts=stages.parts,
    )
    warn_of(report)
    return PruneResult(pruned, {name: mask.to(home) for name, mask in masks.items()}, report)


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
    """SmartPrune(W, A, B) -> U of the paper: prune one layer that is held as tensors.

        U = feta.smart_prune(W, A, torch.relu(A @ W), sparsity=0.9).U

    W: (d_in, d_out), the trained weights.
    A: (m, d_in), the layer's inputs, samples as rows.
    B: (m, d_out), the outputs to reproduce, after the activation.
    sparsity: the share of zeros, or a Sparsity with the number of non-zeros.
    method, options: as for `prune`.
    activation: "relu", "linear" or another of feta.Activation.
    bias: (d_out,); without one the layer has none.
    chunk_rows: how many rows a method looks at at once.

    Returns a LayerSolution: U, the bias, the status and the method's statistics.
    Raises ConfigError where shapes do not fit.
    """
    if A.shape[1:] != W.shape[:1] or B.shape[1:] != W.shape[1:]:
        shapes = f"W {tuple(W.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}"
        raise ConfigError(f"A must be (m, d_in) and B (m, d_out) for W (d_in, d_out), got {shapes}")
    stream = TensorStream(A.to(W.dtype), B.to(W.dtype), chunk_rows=chunk_rows)
    problem = LayerProblem(W, bias, stream, parse_activation(activation))
    target = sparsity if isinstance(sparsity, Sparsity) else Sparsity(sparsity)
    return make(method, options).prune(problem, target)


def _allocate(
    run: Run, chosen: Sequence[str], sparsity: SparsityRequest, spread: Allocation
) -> tuple[dict[str, Sparsity], AllocationReport]:
    """A target for each layer to prune, and how it was found."""
    started, probe = run.clock(), None
    if spread.needs_data and run.fit is not None:
        lane = run.lanes()[0]
        lane.room = replace(lane.room, device=run.home)
        probe = Probe.of(lane, run.layers, run.held or run.fit)
    goals = targets(run.original, chosen, sparsity, spread, probe)
    sizes = {name: weight_of(run.original, name).numel() for name in goals}
    kept = {name: goal.count(sizes[name]) / sizes[name] for name, goal in goals.items()}
    name = "per-layer" if isinstance(sparsity, Mapping) else spread.name
    return goals, AllocationReport(name, run.clock() - started, kept)
