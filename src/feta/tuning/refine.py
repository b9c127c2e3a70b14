"""refine: fit the surviving weights so that a pruned network gives the original's outputs, without labels.

    minimize over the weights inside the masks   mean over rows of  match(f(x), f0(x))

f is the pruned network and f0 the original; the match is chosen by what they return (tuning.matching). Rows are the
user's and mixtures of them (tuning.mixing). Adam's rate falls to zero along half a cosine; biases and unpruned layers
are fitted too, tables of embeddings are not. Rows that are held out decide which weights are kept.

With a support that moves (tuning.support) it starts from the original's weights, and zeros are chosen as it goes.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from feta.calibration.batchnorm import statistics_of
from feta.calibration.inputs import Batch, Inputs, Merged, fitting_size
from feta.calibration.model import call, clock, device_of, differentiable, evaluating, float_dtype, outputs_of
from feta.errors import ConfigError, unknown_name
from feta.layers import weight_of
from feta.masks import ZeroHold, masks_of
from feta.report import RefinePoint, RefineReport
from feta.sparsity import top_k_mask
from feta.tuning.draws import Draws, Original, Rows
from feta.tuning.fitting import Fit, Judge, adam
from feta.tuning.matching import KINDS, Match, match_for
from feta.tuning.mixing import ALIKE, Mixing, is_image
from feta.tuning.stepping import NARROW, Ranks, check, overridden, threads_for, wake_up
from feta.tuning.support import MovingSupport

RATES = (6e-3, 3e-3, 1e-3, 3e-4, 1e-4)  # of Adam, that are tried
TRIAL, TRIED = 20, (20, 100)  # steps to try a rate: a part of all, and within these limits
TRIAL_TIME = 0.2  # of the time budget, after which no other rate is tried
BATCH = 100  # rows, where that many run well


@dataclass(frozen=True)
class Refinement:
    """How to refine: `feta.refine(…, Refinement(steps=5000))` or `feta.prune(…, refine=Refinement(steps=5000))`."""

    steps: int = 2000  # at the most; the learning rate falls to zero over them
    support: Literal["fixed", "moving"] = "fixed"  # "moving": zeros are chosen anew, as many in each layer
    learning_rate: float | None = None  # of Adam, at the start; None: the best of a few short tries
    batch_size: int | None = None  # None: 100, or as many as run well
    loss: Literal["kl", "mse", "cosine"] | None = None  # None: by what the model returns
    mixing: bool | Mixing = True  # whether inputs are mixed, shifted and spliced; or in which shares
    seconds: float | None = None  # a time budget beside the steps

    def __post_init__(self) -> None:
        check(self, "> 0 and finite", "steps", "learning_rate", "batch_size", "seconds")
        for name in ("steps", "batch_size"):
            if not isinstance(value := getattr(self, name), int | None):
                raise ConfigError(f"Refinement.{name} must be a whole number, got {value!r}")
        if self.loss is not None and self.loss not in KINDS:
            raise unknown_name("loss", self.loss, KINDS)
        if self.support not in ("fixed", "moving"):
            raise unknown_name("support", self.support, ("fixed", "moving"))
        if not isinstance(self.mixing, bool | Mixing):
            raise ConfigError(f"Refinement.mixing must be True, False or a Mixing, got {self.mixing!r}")


@dataclass(frozen=True)
class RefineResult:
    """A refined copy of the model, its masks, and how it went."""

    model: nn.Module
    masks: dict[str, Tensor]
    report: RefineReport


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

    Returns a RefineResult: `model`, on the device of the given one, `masks` and `report`.
    Raises ConfigError if a setting, the data or a mask is not what it may be, and ModelError if a loss is not
    finite, or if the two models give no outputs of one shape.

    Example::

        pruned = feta.prune(model, images, 0.9, effort="fast")
        refined = feta.refine(pruned.model, model, images, steps=5000).model
    """
    settings = overridden(Refinement, settings, steps=steps, learning_rate=learning_rate, seconds=seconds)
    inputs = Inputs(data, model=model, n_samples=n_samples, seed=seed)
    fit, held = inputs.split()
    if held is None:
        raise ConfigError(f"data must hold 4 or more samples to refine on, one to judge by, got {inputs.count}")
    where = torch.device(device_of(model) if device is None else device)
    return fitted(model, reference, (fit, held), settings, masks, where, seed, callback)


def fitted(
    model: nn.Module,
    reference: nn.Module,
    rows: tuple[Inputs, Inputs],
    settings: Refinement,
    masks: Mapping[str, Tensor] | None,
    where: torch.device,
    seed: int,
    callback: Callable[[RefinePoint], None] | None = None,
) -> RefineResult:
    """`refine` on rows to fit and rows to judge by."""
    wake_up()
    started = clock(where)
    result, work = copy.deepcopy(model), copy.deepcopy(model).to(where)
    if float_dtype(work) in NARROW:
        work = work.float()
    twin = reference if device_of(reference) == where else copy.deepcopy(reference).to(where)
    with evaluating(work, twin), differentiable(work), threads_for(work):
        bench = _Bench.of(
            work, twin, rows, settings, masks_of(model) if masks is None else masks, where, seed, started
        )
        before = bench.judge(work)
        moving = settings.support == "moving"
        rate = settings.learning_rate or bench.best_rate(moving)
        fit = bench.fit(work, settings.steps, rate, moving, callback)
        stopped = fit.go()
        fit.hold.apply_()
        fit.hold.remove()
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
    )
    return RefineResult(result, {name: mask.to(device_of(result)) for name, mask in fit.hold.masks.items()}, report)


def distance_of(model: nn.Module, reference: nn.Module, held: Inputs, where: torch.device) -> float:
    """How far a network's outputs are from the original's, by the measure that fits are judged by."""
    original = Original(reference, where, float_dtype(model))
    with evaluating(model, reference), torch.no_grad():
        first = next(iter(Merged(held)))
        match = match_for(reference, call(reference, first, where, float_dtype(reference)))
        return Judge(held, original, match, mixing_of(original, first, match))(model)


@dataclass
class _Bench:
    """What fits of one network have in common."""

    work: nn.Module
    draws: Draws
    judge: Judge
    masks: Mapping[str, Tensor]
    settings: Refinement
    started: float

    @classmethod
    def of(
        cls,
        work: nn.Module,
        reference: nn.Module,
        rows: tuple[Inputs, Inputs],
        settings: Refinement,
        masks: Mapping[str, Tensor],
        where: torch.device,
        seed: int,
        started: float,
    ) -> "_Bench":
        original = Original(reference, where, float_dtype(work))
        first = next(iter(Merged(rows[1])))
        with torch.no_grad():
            match = match_for(reference, call(reference, first, where, float_dtype(reference)), settings.loss)
        size = settings.batch_size or min(BATCH, fitting_size(first, 1 / 4))
        whole = mixing_of(original, first, match)
        part = whole.for_passes(settings.steps * size / rows[0].count) if settings.mixing is True else settings.mixing
        mixing = part if isinstance(part, Mixing) else Mixing(0.0, 0.0)
        drawn = Draws(Rows(rows[0], where, original.dtype), original, mixing, size, settings.steps, seed)
        return cls(work, drawn, Judge(rows[1], original, match, whole), masks, settings, started)

    @property
    def original(self) -> Original:
        return self.draws.original

    def fit(
        self, network: nn.Module, steps: int, rate: float, moving: bool = False, callback: Any = None, **given: Any
    ) -> Fit:
        """A fit that is ready to go; one with a moving support starts from the original's weights."""
        masks = self.masks
        if moving:
            copy_weights_(network, self.original.model)
            masks = {name: torch.ones_like(mask) for name, mask in masks.items()}
        hold = ZeroHold(network, masks, gradients=moving)
        optimiser = adam(network, self.original.device, rate)
        counts = {name: int(mask.sum()) for name, mask in self.masks.items()}
        return Fit(
            model=network,
            optimiser=optimiser,
            loss=self._loss,
            batches=replace(self.draws, length=steps),
            ranks=Ranks(self.original.device),
            started=self.started,
            seconds=self.settings.seconds,
            callback=callback,
            held=self.judge,
            hold=hold,
            support=MovingSupport(hold, optimiser, counts) if moving else None,
            **given,
        )

    def best_rate(self, moving: bool) -> float:
        """The rate that fits best in a few steps, the largest first.

        A support that moves has much to learn again: its rate is tried on the original cut to as many weights.
        """
        start, masks = copy.deepcopy(self.work), self.masks
        if moving:
            copy_weights_(start, self.original.model)
            kept = {name: int(mask.sum()) for name, mask in masks.items()}
            masks = {name: top_k_mask(weight_of(start, name).detach().abs(), count) for name, count in kept.items()}
        steps, found = min(max(TRIED[0], self.settings.steps // TRIAL), TRIED[1]), []
        for rate in RATES:
            if clock(self.original.device) - self.started > TRIAL_TIME * (self.settings.seconds or math.inf):
                break
            network = copy.deepcopy(start)
            fit = replace(self, masks=masks).fit(network, steps, rate, record=False)
            with fit.hold:
                found.append((fit.trial(), rate))
            if len(found) > 1 and found[-1] > found[-2]:  # smaller ones do less and less
                break
        return min(found, default=(0.0, RATES[len(RATES) // 2]))[1]

    def _loss(self, result: Any, target: Any) -> Tensor:
        output, keep = target if isinstance(target, tuple) else (target, None)
        return self.judge.match(outputs_of(result), output, keep)


@torch.no_grad()
def copy_weights_(target: nn.Module, source: nn.Module) -> None:
    """Parameters and the statistics of batch-norms; other buffers a model may write as it runs."""

    def weights(model: nn.Module) -> list[Tensor]:
        return [*model.parameters(), *(buffer for buffer, _ in statistics_of(model))]

    pairs = list(zip_longest(weights(target), weights(source)))
    if any(a is None or b is None or a.shape != b.shape for a, b in pairs):
        raise ConfigError("reference must have the weights of the model, for a support that moves from them on")
    for to, new in pairs:
        to.copy_(new)


def mixing_of(original: Original, x: Batch, match: Match) -> Mixing:
    """What suits samples like x: images may be mirrored if the original gives the same answers then."""
    if not isinstance(x, Tensor) or not is_image(x):
        return Mixing(shift=0.0)
    if match.kind != "kl":
        return Mixing()
    same = original.outputs(x).argmax(-1) == original.outputs(x.flip(-1)).argmax(-1)
    return Mixing(mirror=0.5 if float(same.float().mean()) >= ALIKE else 0.0)
