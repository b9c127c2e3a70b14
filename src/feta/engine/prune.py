"""prune: walk a model's layers in order of execution, stream rows, solve each layer, write it back.

The model that is given is never changed. Beyond it and its copy, memory holds one batch's activations, one chunk of
rows, the method's own matrices (d_in^2 for a Gram matrix), and what waits between passes, all of it within
Settings.memory where that is given, however many samples there are.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.allocation import Allocation
from feta.calibration.model import device_of, fused_attention_off
from feta.calibration.recording import running_on
from feta.engine.asked import Asked, asked_of
from feta.engine.checkpoint import key_of
from feta.engine.compare import compared
from feta.engine.finish import Stages, settle_batchnorm, size_of_model, warn_of
from feta.engine.memory import telling_what_fits
from feta.engine.recipe import Effort, Recipe
from feta.engine.reorder import reorder
from feta.engine.run import Run
from feta.engine.select import SparsityRequest, select, skipped
from feta.engine.settings import Callback, Settings, on_bar, parse_memory
from feta.engine.shards import WHOLE, Shards
from feta.engine.spread import Spread, is_spread
from feta.engine.walk import Walk
from feta.files.atomic import write_atomic
from feta.gates import gated
from feta.layers import weight_of
from feta.pages.run import run_page
from feta.patterns import NofM
from feta.problem import Pruner
from feta.progress import Progress
from feta.pruners import options_of
from feta.ranks import ALONE, Ranks
from feta.report import PruneReport, Reported
from feta.sparsity import Pattern
from feta.tuning.refinement import Refinement


@dataclass(frozen=True, repr=False)
class PruneResult(Reported):
    """A pruned copy of the model, the masks of its pruned weights, and the report."""

    model: nn.Module  # the pruned copy, on the device of the model that was given
    masks: dict[str, Tensor]  # layer -> bool, in the shape of its weight; spread where that was not gathered
    report: PruneReport  # prints as a table

    @gated
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
@torch.inference_mode(False)  # in that mode nothing can be fitted
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
    effort: how long it may take: "fast", layer by layer alone; "default", the whole network fitted too, up to a
        minute longer or some ten times as long; "best", until held-out samples say that more is useless. Without a
        method "default".
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
    callback: called with a PruneEvent as layers are measured, start, take steps and are done.
    checkpoint: a folder for finished layers. A run that was ended goes on from there when the same is asked for
        again, to the same bits on the same machine; at the end the folder is removed.
    progress: whether a bar is shown on stderr or in the notebook; where stderr is a file, a line now and then.

    Returns a PruneResult: the pruned model, its masks and the report.
    Raises ConfigError for arguments that cannot be, DataError for data that cannot be used, and ModelError for
    models or layers that cannot be pruned. A device's memory that is full is a feta error too, and a
    torch.OutOfMemoryError, which says what would fit.
    """
    started, how = time.perf_counter(), settings or Settings()
    given = {"seconds": seconds, "layers": layers, "seed": seed, "settings": how, "data": data is not None}
    asked = asked_of(method, options, sparsity, pattern, allocation, compensate, refine, effort, **given)
    here = Ranks.here(device_of(model)) if how.data != "alone" else ALONE
    with fused_attention_off(), here.working() as ranks, Progress("pruning", progress) as bar, ExitStack() as stack:
        spread = Spread(model) if is_spread(model) else None
        model, device, shards = _gathered(model, spread, device, how, ranks)
        if shards:
            asked.check_blocks()
        run = Run.start(model, data, how, device, seed, ranks, shards, None if spread is None else spread.check)
        # A network that is spread cannot be run by one process, to see whether the data is at fault.
        stack.enter_context(running_on(() if shards else run.samples or (), run.original))
        work = Work(asked, run, Stages(started, run.clock), bar.followed(callback, on_bar))
        work.prune(checkpoint)
        home = device_of(model)
        pruned = work.recipe.best.to(home)
        pruned = pruned if spread is None else spread.like(pruned, shards)
    report = work.report()
    if work.walk.checkpoint is not None:
        work.walk.checkpoint.remove()
    warn_of(report, work.recipe.failed)
    return PruneResult(pruned, {name: mask.to(home) for name, mask in work.recipe.masks.items()}, report)


class Work:
    """The stages of one call: which layers, how much of each, the walk over them, and fits of the whole network."""

    def __init__(self, asked: Asked, run: Run, stages: Stages, callback: Callback | None) -> None:
        self.asked, self.run, self.stages = asked, run, stages
        chosen = select(run.original, run.layers, asked.layers)
        moving = asked.form if isinstance(asked.form, NofM) and asked.settings.reorder else None
        self.reordered = {} if moving is None else reorder(run, chosen, moving)
        stages.end("trace")
        self.goals, self.allocated = asked.goals(run, chosen, callback)
        stages.end("allocation")
        self.before = size_of_model(run.pruned, run.layers, run.shards)
        self.walk = Walk(run, self.goals, asked.pruner, asked.compensate, callback, asked.seed)

    def prune(self, checkpoint: str | os.PathLike[str] | None) -> None:
        asked, run, stages = self.asked, self.run, self.stages
        if checkpoint is not None and run.fit is not None:
            self.walk.resume(Path(checkpoint), self._key())
        self.walk.over()
        stages.end("layers")
        self.batchnorm = settle_batchnorm(run)
        stages.end("batchnorm")
        masks = {name: run.shards.held(weight_of(run.result, name)) != 0 for name in self.goals}
        # Shares may move where they were measured, and not asked for.
        free = asked.allocation is None and self.allocated.name == "sensitivity"
        form = None if asked.form is None else str(asked.form)
        self.recipe = Recipe(run, masks, asked.seed, self._left, self.walk.tell_loss, form, free)
        if asked.effort is not None and run.fit is not None:
            self.recipe.layers_done(run.ranks.most(sum(stages.parts.values())))
            if asked.effort != "fast" and not run.shards and not all(bool(mask.all()) for mask in masks.values()):
                self.recipe.improve(asked.effort)
        elif asked.refine:
            self.recipe.refine(asked.refine if isinstance(asked.refine, Refinement) else Refinement())
        stages.end("refinement")
        self.held = compared(run, self.recipe.best)
        self.after = size_of_model(self.recipe.best, run.layers, run.shards)

    def _key(self) -> dict[str, str]:
        """What a run that goes on must have asked for as well."""
        asked = self.asked
        counts = {name: goal.count(weight_of(self.run.result, name).numel()) for name, goal in self.goals.items()}
        method = (asked.pruner.name, options_of(asked.pruner))
        how = {"pattern": asked.form, "compensate": asked.compensate, "seed": asked.seed}
        return key_of(self.run, method=method, layers=counts, **how)

    def _left(self) -> float | None:
        """Seconds of the budget, if there is one."""
        return None if self.asked.seconds is None else self.asked.seconds - self.run.ranks.most(self.stages.since())

    def report(self) -> PruneReport:
        """What was done, after everything else."""
        asked, run, recipe, share = self.asked, self.run, self.recipe, self.asked.sparsity
        layers = tuple(recipe.settled(layer) for layer in self.walk.reports)
        self.stages.end("rest")
        kept, total = sum(layer.nonzeros for layer in layers), sum(mask.numel() for mask in recipe.masks.values())
        return PruneReport(
            method=asked.pruner.name,
            target_sparsity=dict(share) if isinstance(share, Mapping) else float(share),
            sparsity=1 - kept / total,
            seconds=sum(self.stages.parts.values()),
            device=str(run.device),
            seed=asked.seed,
            options=options_of(asked.pruner),
            layers=layers,
            compensated=self.walk.compensated,
            allocation=self.allocated,
            refinement=recipe.refinement,
            before=self.before,
            after=self.after,
            skipped=skipped(run.original, run.layers, list(self.goals), asked.layers is None),
            segments=len(run.chain.segments(run.layers)),
            batchnorm=self.batchnorm,
            parts=self.stages.parts,
            effort=asked.effort,
            stages=tuple(recipe.stages),
            pattern=recipe.pattern,
            reordered=self.reordered,
            held=self.held,
            judged_by=None if run.fit is None else 0 if run.held is None else run.held.count,
        )


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
