"""shrink: a network rebuilt with fewer neurons and channels, refitted layer by layer to the original's outputs."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch, rows_of, size_of
from feta.calibration.model import device_of, float_dtype, fused_attention_off, place
from feta.calibration.recording import running_on
from feta.engine.recipe import FLOOR, TIMES
from feta.engine.run import Run
from feta.engine.settings import Settings
from feta.errors import ConfigError, ModelError, check_range
from feta.gates import gated
from feta.layers import matching
from feta.progress import Progress
from feta.report import Reported
from feta.sparsity import check_share
from feta.structured.build import build, improve, lost_channels
from feta.structured.choice import Order, orders
from feta.structured.groups import Group, find_groups, torch_pruning
from feta.structured.report import Narrowed, Scale, ShrinkReport
from feta.structured.timing import milliseconds
from feta.structured.widths import Layer, Widths
from feta.tuning.refinement import Refinement

STEPS = {"fast": 0, "default": 2000, "best": 8000}  # of the fit of the whole network
ALLOCATIONS = ("uniform", "error")
TIMED = 64  # samples that a network is timed with


@dataclass(frozen=True, repr=False)
class ShrinkResult(Reported):
    """A smaller network, what stayed of each group of channels, and the report."""

    model: nn.Module  # a plain network with smaller layers
    kept: dict[str, list[int]]  # layer -> the outputs that it still has
    report: ShrinkReport  # prints as a table


@gated
@torch.inference_mode(False)  # in that mode nothing can be fitted
def shrink(
    model: nn.Module,
    data: Any,
    share: float = 0.5,
    *,
    effort: Literal["fast", "default", "best"] = "default",
    seconds: float | None = None,
    allocation: Literal["error", "uniform"] | None = None,
    layers: Sequence[str] | str | None = None,
    keep: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    settings: Settings | None = None,
    progress: bool = False,
) -> ShrinkResult:
    """Rebuild a trained model with fewer neurons and channels, without labels and without retraining.

        small = feta.shrink(model, images, 0.5)
        print(small.report)
        small.model(images)

    Needs the package torch-pruning: pip install torch-pruning.

    model: any nn.Module that runs backwards; it is not changed.
    data: unlabelled inputs, as for `feta.prune`.
    share: of the model's multiply-adds that goes.
    effort: "fast", layer by layer alone; "default" and "best", then the whole network fitted to the original's
        outputs for 2000 or 8000 steps, fewer where they would take more than nine times as long as the layers; the
        fit is kept if held-out samples say that it helped.
    seconds: a time budget; the layers are always finished, the fit is cut to what is left.
    allocation: "error": from where the model's outputs suffer least for what is saved; "uniform": the same share of
        every layer's outputs; None: both, and the one that is nearer to the original on held-out samples.
    layers: names or shell patterns of the layers that may lose outputs; by default all whose removal leaves no trace.
    keep: instead of a share, the outputs that stay of some layers, by name: a choice of one's own that is refitted.
    seed, device, settings, progress: as for `feta.prune`.

    Returns a ShrinkResult: the smaller model, the outputs that stayed, and the report.
    Raises ConfigError for arguments that cannot be or without torch-pruning, DataError for data that cannot be used,
    and ModelError for models that cannot be traced, or that have nothing to remove.
    """
    started = time.perf_counter()
    how = _checked(data, share, settings)
    check_range("", "> 0 and finite", seconds=seconds)
    with fused_attention_off(), Progress("shrinking", progress, 4) as bar, ExitStack() as stack:
        run = Run.start(model, data, how, device, seed)
        assert run.fit is not None
        stack.enter_context(running_on(run.samples or (), run.original))
        batch = _example(run)
        bar.update(1, note="which channels hang together")
        groups, refused = find_groups(run.original, batch, run.layers)
        groups, refused = _allowed(groups, refused, layers, keep)
        widths = Widths([Layer.of(run.original, trace) for trace in run.layers], groups)
        if keep is None:
            widths.target(share)  # refused before the work
        bar.update(2, note="which of them matter least")
        weights = run.sensitivity(run.layers, seed)
        if keep is None:
            spread = [name for name in ALLOCATIONS if allocation in (None, name)]
            chosen = _chosen(orders(run, groups, weights), widths, share, spread)
        else:
            chosen = {"given": {group.root: _rest(group, keep) for group in groups}}
        bar.update(3, note="the smaller network, layer by layer")
        tries = {name: build(run, batch, groups, gone, weights, seed) for name, gone in chosen.items()}
        taken = min(tries, key=lambda name: tries[name].distance)
        done = tries[taken]
        if STEPS[effort]:
            spent = run.clock() - started
            within = max(FLOOR, TIMES * spent) if seconds is None else max(seconds - spent, 1.0)
            tell = bar.followed(
                None, lambda point: {"note": f"fitting it, {point.steps} steps, loss {point.loss:.4g}"}
            )
            fit = Refinement(STEPS[effort], loss=how.loss, seconds=None if seconds is None else within)
            done = improve(run, done, fit, seed, within, tell)
        bar.update(4, note="timing both")
        timed = rows_of(next(iter(run.fit)), slice(TIMED))
        speed = milliseconds((run.original, done.model), timed)
    lost = {root: len(units) for root, units in done.gone.items()}
    adds = (widths.multiply_adds(dict.fromkeys(lost, 0)), widths.multiply_adds(lost))
    sizes = (sum(weight.numel() for weight in network.parameters()) for network in (model, done.model))
    scales = [Scale(*found) for found in zip(sizes, map(round, adds), speed, strict=True)]
    report = ShrinkReport(
        share=share if keep is None else None,
        seconds=run.clock() - started,
        device=str(run.device),
        seed=seed,
        before=scales[0],
        after=scales[1],
        batch=size_of(timed),
        groups=tuple(Narrowed(group.root, group.units, group.units - lost[group.root]) for group in groups),
        refused=refused,
        errors=done.errors,
        allocation=taken,
        tried={name: found.stages[0].distance for name, found in tries.items()},
        batchnorm=done.batchnorm,
        stages=done.stages,
        refinement=done.refinement,
    )
    outputs = lost_channels(groups, done.gone)[1]
    kept = {
        name: sorted(set(channels.flatten().tolist()) - set(outputs[name].tolist()))
        for group in groups
        for name, channels in group.outputs.items()
    }
    return ShrinkResult(done.model.to(device_of(model)), kept, report)


def _checked(data: Any, share: float, settings: Settings | None) -> Settings:
    """The settings. Raises ConfigError for arguments that cannot be."""
    check_share(share, "share")
    if data is None:
        raise ConfigError("data must be given for shrink, got None")
    torch_pruning()  # said before anything is run
    return settings or Settings()


def _example(run: Run) -> Batch:
    """Two samples, as a model is traced with."""
    assert run.samples is not None
    first = next(batch for batch in run.samples if size_of(batch))
    return place(rows_of(first, slice(2)), run.home, float_dtype(run.original))  # type: ignore[no-any-return]


def _allowed(
    groups: list[Group],
    refused: dict[str, str],
    layers: Sequence[str] | str | None,
    keep: Mapping[str, Sequence[int]] | None,
) -> tuple[list[Group], dict[str, str]]:
    """The groups that the user lets go; of those that have to stay, why. Raises where there are none."""
    if not groups:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise ModelError(f"model must have channels that can be removed, got none ({reasons}); feta.prune prunes it")
    names = [name for group in groups for name in group.outputs]
    for name in keep or ():
        if name not in names:
            why = f" ({refused[name]})" if name in refused else ""
            raise ConfigError(f"keep must name layers out of {names}, got '{name}'{why}")
    wanted = set(keep) if keep is not None else set(names if layers is None else matching(names, layers))
    chosen = [group for group in groups if not wanted.isdisjoint(group.outputs)]
    asked = {group.root: "not asked for" for group in groups if wanted.isdisjoint(group.outputs)}
    return chosen, refused | asked


def _chosen(
    found: Mapping[str, Order], widths: Widths, share: float, spread: Sequence[str]
) -> dict[str, dict[str, Tensor]]:
    """For each way to spread what goes over the groups: the units of each that go."""
    errors = {root: order.errors for root, order in found.items()}
    chosen = {}
    for name in spread:
        counts = widths.uniform(share) if name == "uniform" else widths.by_error(share, errors)
        chosen[name] = {root: torch.tensor(found[root].units[:count]).long() for root, count in counts.items()}
    return chosen


def _rest(group: Group, keep: Mapping[str, Sequence[int]]) -> Tensor:
    """The units of a group that go where these outputs of its layers stay."""
    found = {name: _units(name, outputs, keep[name]) for name, outputs in group.outputs.items() if name in keep}
    first, *others = found.values()
    if any(not torch.equal(first, other) for other in others):
        raise ConfigError(f"keep must say the same of layers that hang together, got {sorted(found)}")
    return first


def _units(name: str, outputs: Tensor, kept: Sequence[int]) -> Tensor:
    wanted = torch.tensor(sorted(set(kept)), dtype=torch.int64)
    stays = torch.isin(outputs, wanted)
    if int(stays.sum()) < len(wanted) or not bool(stays.any()):
        raise ConfigError(f"keep['{name}'] must be outputs from 0 to {outputs.numel() - 1}, got {list(kept)}")
    if bool((stays.any(1) != stays.all(1)).any()):
        raise ConfigError(f"keep['{name}'] must keep the same places of every group of it, got {list(kept)}")
    return (~stays[:, 0]).nonzero()[:, 0]
