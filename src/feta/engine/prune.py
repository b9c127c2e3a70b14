"""prune: walk a model's layers in order of execution, stream rows, solve each layer, write it back.

The model that is given is never changed. Beyond it and its copy, memory holds one batch's activations, one chunk of
rows, the method's own matrices (d_in^2 for a Gram matrix), and what waits between passes, all of it within
Settings.memory where that is given, however many samples there are.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.allocation import Allocation, make_allocation
from feta.allocation.measure import Probe
from feta.calibration.model import device_of, fused_attention_off
from feta.calibration.recording import running_on
from feta.engine.checkpoint import key_of
from feta.engine.finish import Stages, compared, settle_batchnorm, size_of_model, warn_of
from feta.engine.memory import telling_what_fits
from feta.engine.recipe import MANY_LAYERS, Effort, Recipe
from feta.engine.reorder import reorder
from feta.engine.run import Run
from feta.engine.select import SparsityRequest, check_pattern, in_pattern, select, share_asked, skipped, targets
from feta.engine.settings import Callback, Settings, on_bar, parse_memory
from feta.engine.shards import WHOLE, Shards
from feta.engine.spread import Spread, is_spread
from feta.engine.walk import Walk
from feta.errors import ConfigError, DataError, check_range
from feta.files.atomic import write_atomic
from feta.gates import gated
from feta.layers import weight_of
from feta.pages.run import run_page
from feta.patterns import NofM, parse_pattern
from feta.problem import Pruner
from feta.progress import Progress
from feta.pruners import DEFAULT_METHOD, make, options_of
from feta.ranks import ALONE, Ranks
from feta.report import AllocationReport, PruneReport, Reported
from feta.sparsity import Pattern, Sparsity
from feta.tuning.refinement import Refinement

BY_SHAPE = ("uniform", "erk")  # allocations that look at no weights
BLOCKS = "a model that is spread over processes and walked block by block"
ROOM = "it is gathered as a whole where each process has memory for it twice, see feta.Settings(memory=…)"
LEAST_MEMORY = 2**25  # bytes for a solver's matrices, however little a run may take


@dataclass(frozen=True, repr=False)
class PruneResult(Reported):
    """A pruned copy of the model, the masks of its pruned weights, and the report."""

    model: nn.Module  # the pruned copy, on the device of the model that was given
    masks: dict[
        str, Tensor
    ]  # layer name -> bool, the shape of the layer's weight; spread where that was not gathered
    report: PruneReport

    def save_report(
        self, path: str | Path, *, network: str | None = None, accuracy: tuple[float, float] | None = None
    ) -> None:
        """Write the report as one HTML page that needs nothing else: a chart of the layers, and what to try next.

        network: a name for the top of the page.
        accuracy: in percent, before and after, where you have labels; otherwise held-out outputs are compared.
        """
        found = self.report.to_dict() | {"network": network}
        if accuracy is not None:
            found["accuracy"] = {name: {"test": one} for name, one in zip(("dense", "pruned"), accuracy, strict=True)}
        write_atomic(Path(path), run_page(found).encode())


@gated
@telling_what_fits
def prune(
    model: nn.Module,
    data: Any = None,
    sparsity: SparsityRequest | None = None,
    method: str | Pruner | None = None,
    *,
    pattern: str | Pattern | None = None,
    effort: Effort | None = None,
    seconds: float | None = None,
    options: Mapping[str, Any] | None = None,
    layers: Sequence[str] | str | None = None,
    allocation: str | Allocation | None = None,
    compensate: bool | None = None,
    refine: bool | Refinement = False,
    seed: int = 0,
    device: str | torch.device | None = None,
    settings: Settings | None = None,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> PruneResult:
    """Prune a copy of a trained model without retraining it.

        result = feta.prune(model, images, 0.9)
        print(result.report)
        feta.save(result.model, "pruned.safetensors")

    That is the whole recipe. It needs nothing else; whoever names a method gets that method alone.

    model: any nn.Module, one that torch's fully_shard or parallelize_module has spread over processes included; it is
        not changed.
    data: unlabelled inputs: a tensor with samples as rows, or any iterable of tensors, (x, y) pairs or dicts, a
        DataLoader included. Only `threshold` works without.
    sparsity: the share of zero weights in [0, 1), or {layer pattern: share}; by default 0.9, or what `pattern` says.
    method: a name out of `feta methods`, or a Pruner object such as feta.pruners.Alps(), applied layer by layer, with
        uniform shares and nothing after it unless the arguments below say so.
    pattern: which weights stay together: "2:4" or any N:M, N of every M consecutive inputs of an output; blocks of
        outputs x inputs such as "4x1"; "neurons" or "channels", whole outputs. None: any weights.
    effort: how long it may take: "fast", layer by layer alone; "default", about ten times as long, the whole network
        fitted too; "best", until held-out samples say that more is useless. Without a method "default".
    seconds: a time budget; the layers are always finished, what follows is cut to fit.
    options: of a method that is given by its name.
    layers: names or shell patterns of the layers to prune; by default all that can be, but for convolutions that
        read the model's input, layers whose outputs are the model's, and weights that are an embedding's too.
    allocation: how one share is spread over the layers: a name out of feta.allocation, or an object.
    compensate: whether the unpruned layer after a pruned one is refitted to its original outputs.
    refine: of a method that is named: whether the surviving weights are fitted to the original's outputs at the end;
        True, or how.
    seed: for everything that is drawn at random.
    device: where to work; by default where the model is. The result comes back to the model's own device.
    settings: what few people change, see `feta.Settings`.
    callback: called with a PruneEvent as layers start, take steps and are done.
    checkpoint: a folder for finished layers. A run that was ended goes on from there when the same is asked for
        again, to the same bits on the same machine; at the end the folder is removed.
    progress: whether a bar is shown on stderr or in the notebook; where stderr is a file, a line now and then.

    Returns a PruneResult: the pruned model, its masks and the report.
    Raises ConfigError for arguments that cannot be, DataError for data that cannot be used, and ModelError for
    models or layers that cannot be pruned. A device's memory that is full is a feta error too, and a
    torch.OutOfMemoryError, which says what would fit.
    """
    started = time.perf_counter()
    check_range("", "> 0 and finite", seconds=seconds)
    if effort is None and method is None and not refine:
        effort = "default"
    if effort is not None and refine:
        raise ConfigError(f"refine must be left to the effort, got effort='{effort}' and refine; give one of the two")
    if effort is None and seconds is not None:
        raise ConfigError(f"seconds must go with an effort, got {seconds} for a method alone; effort='default' does")
    how = settings or Settings()
    pruner, form = make(method or DEFAULT_METHOD, options), parse_pattern(pattern)
    sparsity = share_asked(sparsity, form)
    check_pattern(form, pruner, allocation)
    if pruner.needs.seed and isinstance(method, str) and "seed" not in (options or {}):
        pruner = replace(pruner, seed=seed)  # type: ignore[type-var]
    if isinstance(method, str | None) and "memory" not in (options or {}):
        pruner = _within(pruner, parse_memory(how.memory))
    compensate = effort is not None and data is not None if compensate is None else compensate
    _check_data(data, pruner, allocation, compensate or how.batchnorm or bool(refine))
    here = Ranks.here(device_of(model)) if how.data != "alone" else ALONE
    with fused_attention_off(), here.working() as ranks, Progress("pruning", progress) as bar, ExitStack() as stack:
        spread = Spread(model) if is_spread(model) else None
        model, device, shards = _gathered(model, spread, device, how, ranks)
        if shards:
            _check_blocks(refine, allocation)
        run = Run.start(model, data, how, device, seed, ranks, shards, None if spread is None else spread.check)
        # A network that is spread cannot be run by one process, to see whether the data is at fault.
        stack.enter_context(running_on(() if shards else run.samples or (), run.original))
        stages = Stages(started, run.clock)
        chosen = select(run.original, run.layers, layers)
        reordered = reorder(run, chosen, form) if isinstance(form, NofM) and how.reorder else {}
        stages.end("trace")
        if allocation is None:
            few = len(chosen) <= MANY_LAYERS and not isinstance(sparsity, Mapping) and not run.several and not shards
            few = few and (form is None or form.share is None)
            measured = few and effort is not None and data is not None
            goals, allocated = _advised(run, chosen, sparsity, measured, form)
        else:
            goals, allocated = _allocate(run, chosen, sparsity, make_allocation(allocation), form)
        stages.end("allocation")
        before = size_of_model(run.pruned, run.layers, shards)
        walk = Walk(run, goals, pruner, compensate, bar.followed(callback, on_bar), seed)
        if checkpoint is not None and run.fit is not None:
            counts = {name: goal.count(weight_of(run.result, name).numel()) for name, goal in goals.items()}
            asked = {
                "method": (pruner.name, options_of(pruner)),
                "layers": counts,
                "pattern": form,
                "compensate": compensate,
                "seed": seed,
            }
            walk.resume(Path(checkpoint), key_of(run, **asked))
        walk.over()
        stages.end("layers")
        said = settle_batchnorm(run)
        stages.end("batchnorm")
        masks = {name: shards.held(weight_of(run.result, name)) != 0 for name in goals}

        def left() -> float | None:
            return None if seconds is None else seconds - ranks.most(run.clock() - started)

        free = allocation is None and allocated.name == "sensitivity"  # not where a layer could not be measured
        recipe = Recipe(run, masks, seed, left, walk.tell_loss, None if form is None else str(form), free)
        if effort is not None and run.fit is not None:
            recipe.layers_done(ranks.most(sum(stages.parts.values())))
            if effort != "fast" and not shards and not all(bool(mask.all()) for mask in masks.values()):
                recipe.improve(effort)
        elif refine:
            recipe.refine(refine if isinstance(refine, Refinement) else Refinement())
        stages.end("refinement")
        held = compared(run, recipe.best)
        pruned, masks = recipe.best, recipe.masks
        after, home = size_of_model(pruned, run.layers, shards), device_of(model)
        pruned = pruned.to(home)
        pruned = pruned if spread is None else spread.like(pruned, shards)
    done = tuple(recipe.settled(layer) for layer in walk.reports)
    stages.end("rest")
    report = PruneReport(
        method=pruner.name,
        target_sparsity=dict(sparsity) if isinstance(sparsity, Mapping) else float(sparsity),
        sparsity=1 - sum(layer.nonzeros for layer in done) / sum(mask.numel() for mask in masks.values()),
        seconds=sum(stages.parts.values()),
        device=str(run.device),
        seed=seed,
        options=options_of(pruner),
        layers=done,
        compensated=walk.compensated,
        allocation=allocated,
        refinement=recipe.refinement,
        before=before,
        after=after,
        skipped=skipped(run.original, run.layers, list(goals), layers is None),
        segments=len(run.chain.segments(run.layers)),
        batchnorm=said,
        parts=stages.parts,
        effort=effort,
        stages=tuple(recipe.stages),
        pattern=None if form is None else str(form),
        reordered=reordered,
        held=held,
        judged_by=None if run.fit is None else 0 if run.held is None else run.held.count,
    )
    if walk.checkpoint is not None:
        walk.checkpoint.remove()
    warn_of(report)
    return PruneResult(pruned, {name: mask.to(home) for name, mask in masks.items()}, report)


def _gathered(
    model: nn.Module, spread: Spread | None, device: Any, how: Settings, ranks: Ranks
) -> tuple[nn.Module, Any, Shards]:
    """The network to work on, where, and what of it is gathered block by block."""
    if spread is None:
        return model, device, WHOLE
    if spread.fits(parse_memory(how.memory), ranks):
        return spread.whole(), device or spread.device, WHOLE
    shards = Shards(ranks)
    return spread.skeleton(shards), device, shards


def _check_blocks(refine: bool | Refinement, allocation: str | Allocation | None) -> None:
    """Raise ConfigError for what takes the whole network at once, which no process has."""
    if refine:
        raise ConfigError(f"refine must be left out for {BLOCKS}, got {refine}; {ROOM}")
    if allocation is not None and (name := make_allocation(allocation).name) not in BY_SHAPE:
        raise ConfigError(f"allocation must be one of {list(BY_SHAPE)} for {BLOCKS}, got '{name}'; {ROOM}")


def _within(pruner: Pruner, limit: float | None) -> Pruner:
    """A method that keeps to a part of the run's memory, where it has a say."""
    own = getattr(pruner, "memory", None)
    if own is None or limit is None:
        return pruner
    return replace(pruner, memory=min(own, max(limit / 8, LEAST_MEMORY) / 2**30))  # type: ignore[type-var]


def _check_data(data: Any, pruner: Pruner, allocation: str | Allocation | None, fits: bool) -> None:
    """Raise ConfigError where something cannot do without data."""
    if data is not None:
        return
    spread = make_allocation(allocation or "uniform")
    if pruner.needs.passes != "none":
        raise ConfigError(f"data must be given for method '{pruner.name}', got None")
    if spread.needs_data:
        raise ConfigError(f"data must be given for allocation '{spread.name}', got None")
    if fits:
        raise ConfigError("data must be given for compensate, batchnorm and refine, got None")


def _advised(
    run: Run, chosen: Sequence[str], sparsity: SparsityRequest, measured: bool, form: Pattern | None
) -> tuple[dict[str, Sparsity], AllocationReport]:
    """The allocation where none was asked for: by sensitivity if that can be measured."""
    if measured:
        try:
            return _allocate(run, chosen, sparsity, make_allocation("sensitivity"), form)
        except torch.OutOfMemoryError:
            raise
        except (DataError, RuntimeError):  # an expert that no sample reaches, outputs that are whole numbers
            pass
    return _allocate(run, chosen, sparsity, make_allocation("uniform"), form)


def _allocate(
    run: Run, chosen: Sequence[str], sparsity: SparsityRequest, spread: Allocation, form: Pattern | None
) -> tuple[dict[str, Sparsity], AllocationReport]:
    """A target for each layer to prune, and how it was found."""
    started, probe = run.clock(), None
    if spread.needs_data and run.fit is not None:
        lane = run.lanes()[0]
        lane.room = replace(lane.room, device=run.home)
        probe = Probe.of(lane, run.layers, run.held or run.fit)
    goals = in_pattern(run.original, targets(run.original, chosen, sparsity, spread, probe), form)
    sizes = {name: weight_of(run.original, name).numel() for name in goals}
    kept = {name: goal.count(sizes[name]) / sizes[name] for name, goal in goals.items()}
    name = "per-layer" if isinstance(sparsity, Mapping) else spread.name
    return goals, AllocationReport(name, run.clock() - started, kept)
