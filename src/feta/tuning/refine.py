"""refine: fit the surviving weights so that a pruned network gives the original's outputs, without labels.

    minimize over the weights inside the masks   mean over rows of  match(f(x), f0(x))

f is the pruned network and f0 the original; the match is chosen by what they return (tuning.matching). Rows are the
user's and mixtures of them (tuning.mixing). Adam's rate falls to zero along half a cosine; biases and unpruned layers
are fitted too, tables of embeddings are not. Rows that are held out decide which weights are kept.

With a support that moves (tuning.support) it starts from the original's weights, and zeros are chosen as it goes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from feta.calibration.batchnorm import statistics_of
from feta.calibration.copies import copied, shell
from feta.calibration.inputs import Inputs
from feta.calibration.model import clock, device_of, differentiable, evaluating, float_dtype
from feta.calibration.recording import running_on
from feta.errors import ConfigError
from feta.gates import gated
from feta.layers import owner_of
from feta.masks import masks_of
from feta.progress import Progress
from feta.ranks import ALONE, Ranks
from feta.report import RefinePoint, RefineReport, Reported
from feta.tuning.bench import Bench, copy_weights_
from feta.tuning.refinement import Refinement
from feta.tuning.stepping import NARROW, overridden, threads_for, wake_up

LEAST_STEPS = 100  # of a fit
LATE = 2  # times the seconds its steps were to take, when a fit ends


@dataclass(frozen=True, repr=False)
class RefineResult(Reported):
    """A refined copy of the model, its masks, and how it went."""

    model: nn.Module  # with as many zeros as before
    masks: dict[str, Tensor]  # True where a weight may stay
    report: RefineReport  # prints as a line


@gated
@torch.inference_mode(False)  # in that mode nothing can be fitted
def refine(
    model: nn.Module,
    reference: nn.Module,
    data: Any,
    settings: Refinement | None = None,
    *,
    steps: int | None = None,
    learning_rate: float | None = None,
    seconds: float | None = None,
    masks: Mapping[str, Tensor] | None = None,
    n_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RefinePoint], None] | None = None,
    progress: bool = False,
) -> RefineResult:
    """Fit a copy of a pruned model to the outputs of the original on unlabelled data, with its zeros held.

    model: the pruned model; it is not changed.
    reference: the model whose outputs are matched, as it was before pruning. Of several outputs the one called
        `logits` is matched, or else the first float tensor.
    data: unlabelled inputs, as for `feta.prune`.
    settings: how to refine; None for the defaults of `feta.Refinement`.
    steps, learning_rate, seconds: if given, they replace those of the settings.
    masks: true where a weight may live, as in `PruneResult.masks`; by default the model's zeros are held.
    n_samples: use at most this many samples of the data.
    seed: for the order of the rows, and for the choice of `n_samples`.
    device: where to work; by default where the model is.
    callback: called with a (seconds, steps, loss) after each look at the held-out rows.
    progress: whether a bar is shown, as by `feta.prune`.

    Returns a RefineResult: `model`, on the device of the given one, `masks` and `report`.
    Raises ConfigError if a setting, the data or a mask is not what it may be, and ModelError if a loss is not
    finite, or if the two models give no outputs of one shape.

    Example::

        pruned = feta.prune(model, images, 0.9, effort="fast")
        refined = feta.refine(pruned.model, model, images, steps=5000).model
    """
    settings = overridden(Refinement, settings, steps=steps, learning_rate=learning_rate, seconds=seconds)
    if masks is None:
        _check_order(model, reference)
    inputs = Inputs(data, model=model, n_samples=n_samples, seed=seed)
    fit, held = inputs.split()
    if held is None:
        raise ConfigError(f"data must hold 4 or more samples to refine on, one to judge by, got {inputs.count}")
    where = torch.device(device_of(model) if device is None else device)
    with Progress("refining", progress, settings.steps) as bar:
        tell = bar.followed(callback, shown)
        return fitted(model, reference, (fit, held), settings, masks, where, seed, tell)


def _check_order(model: nn.Module, reference: nn.Module) -> None:
    """Raise ConfigError where the pruned network and the original have changed places."""
    shapes, others = ([weight.shape for weight in one.parameters()] for one in (model, reference))
    if shapes == others and not masks_of(model) and masks_of(reference):
        raise ConfigError(
            "model must be the pruned network, got one without zeros beside a reference that has some; write "
            "feta.refine(pruned, dense, data), or masks={} if no zeros are to be held"
        )


def shown(point: RefinePoint) -> dict[str, Any]:
    """What a bar shows of a look at the held-out rows."""
    return {"completed": point.steps, "note": f"loss {point.loss:.4g}"}


def fitted(
    model: nn.Module,
    reference: nn.Module,
    rows: tuple[Inputs, Inputs],
    settings: Refinement,
    masks: Mapping[str, Tensor] | None,
    where: torch.device,
    seed: int,
    callback: Callable[[RefinePoint], None] | None = None,
    within: float = math.inf,
    thaw: bool = False,
    ranks: Ranks = ALONE,
    wider: int = 1,
) -> RefineResult:
    """`refine` on rows to fit and rows to judge by.

    within: seconds that trials and steps may take, each at least half of them; steps are halved until they do, at
        the pace of the trials, and end when they took twice as long as that.
    thaw: whether what was pruned is fitted even where it is frozen.
    ranks: processes that have the same rows, and work on their share of every batch.
    wider: times as many rows in a batch as usual, where no size is asked for and as many run well.
    """
    wake_up()
    started = clock(where)
    masks = masks_of(model) if masks is None else masks
    result, work = copied(model), copied(model).to(where)
    if float_dtype(work) in NARROW:
        work = work.float()
    if thaw:
        _thaw(work, masks)
    twin = shell(reference) if device_of(reference) == where else copied(reference).to(where)
    settled = running_on(chain(*rows), work, twin)
    with evaluating(work, twin), differentiable(work), threads_for(work), settled:
        bench = Bench.of(work, twin, rows, settings, masks, where, seed, started, ranks, wider)
        before = bench.judge(work)
        moving = settings.support != "fixed"
        rate = settings.learning_rate or bench.best_rate(moving, within / 2)
        steps = settings.steps
        # The rate was tried, and texts were written: that counts, as long as half of the time is left for steps.
        left = max(within - ranks.most(clock(where) - started), within / 2)
        while steps >= 2 * LEAST_STEPS and steps * bench.pace > left:
            steps //= 2
        if settings.seconds is None and math.isfinite(within):  # where the least steps take far too long, too
            bench = replace(bench, started=clock(where), settings=replace(settings, seconds=LATE * left))
        fit = bench.fit(work, steps, rate, moving, callback)
        with fit.hold:
            stopped = fit.go()
            fit.hold.apply_()
            ranks.same_([*work.parameters(), *(buffer for buffer, _ in statistics_of(work))])
        bench.original.close()
    copy_weights_(result, work)
    report = RefineReport(
        seconds=clock(where) - started,
        steps=fit.steps,
        loss_before=before,
        loss_after=-fit.best,
        history=tuple(fit.history),
        stopped=cast(Any, stopped),
        loss=bench.judge.match.kind,
        device=str(where),
        seed=seed,
        learning_rate=rate,
        support=settings.support,
        measure=bench.judge.measure,
    )
    return RefineResult(result, {name: mask.to(device_of(result)) for name, mask in fit.hold.masks.items()}, report)


def _thaw(work: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """What was pruned learns, frozen or not; all of it where everything is frozen, as for inference."""
    if not any(parameter.requires_grad for parameter in work.parameters()):
        work.requires_grad_(True)
    for module, name, _ in (owner_of(work, layer) for layer in masks):
        getattr(module, name).requires_grad_(True)
