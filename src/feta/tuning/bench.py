"""What the fits of one network have in common: rows, judge, masks, and the learning rate that suits it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.batchnorm import statistics_of
from feta.calibration.inputs import Batch, Inputs, Merged, fitting_size
from feta.calibration.model import call, evaluating, float_dtype, outputs_of
from feta.errors import ConfigError
from feta.layers import weight_of
from feta.masks import ZeroHold
from feta.ranks import ALONE, Ranks
from feta.tuning.draws import Draws, Original, Rows
from feta.tuning.fitting import Fit, Judge, adam
from feta.tuning.matching import Match, match_for
from feta.tuning.mixing import ALIKE, Mixing, is_image
from feta.tuning.refinement import Refinement
from feta.tuning.rewriting import rewriter_of
from feta.tuning.support import MovingSupport, chooser

RATES = (6e-3, 3e-3, 1e-3, 3e-4, 1e-4)  # of Adam, that are tried
TRIAL, TRIED = 20, (20, 100)  # steps to try a rate: a part of all, and within these limits
BATCH = 100  # rows, where that many run well


def distance_of(
    model: nn.Module,
    reference: nn.Module,
    held: Inputs,
    where: torch.device,
    loss: str | None = None,
    ranks: Ranks = ALONE,
) -> tuple[float, str]:
    """How far a network's outputs are from the original's, and by which measure: that by which fits are judged."""
    original = Original(reference, where, float_dtype(model))
    with evaluating(model, reference), torch.no_grad():
        first = next(iter(Merged(held)))
        match = match_for(reference, call(reference, first, where, float_dtype(reference)), loss)
        judge = Judge(held, original, match, mixing_of(original, first, match), ranks)
        return judge(model), judge.measure


@dataclass
class Bench:
    """What fits of one network have in common."""

    work: nn.Module
    draws: Draws
    judge: Judge
    masks: Mapping[str, Tensor]
    settings: Refinement
    started: float
    ranks: Ranks
    pace: float = 0.0  # seconds that a step took in the trials

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
        ranks: Ranks = ALONE,
        wider: int = 1,
    ) -> "Bench":
        original = Original(reference, where, float_dtype(work))
        first = next(iter(Merged(rows[1])))
        with torch.no_grad():
            match = match_for(reference, call(reference, first, where, float_dtype(reference)), settings.loss)
        size = settings.batch_size or min(wider * BATCH, fitting_size(first, 1 / 4))
        whole = mixing_of(original, first, match)
        part = whole.for_passes(settings.steps * size / rows[0].count) if settings.mixing is True else settings.mixing
        mixing = part if isinstance(part, Mixing) else Mixing(0.0, 0.0, 0.0, 0.0)
        rewriter = rewriter_of(original.outputs, first) if mixing.rewrite and match.kind == "kl" else None
        drawn = Draws(
            Rows(rows[0], where, original.dtype), original, mixing, size, settings.steps, seed, rewriter, ranks
        )
        judge = Judge(rows[1], original, match, whole, ranks)
        return cls(work, drawn, judge, masks, settings, started, replace(ranks, device=where))

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
        choose = None if self.settings.support == "free" else chooser(network, self.settings.pattern)
        return Fit(
            model=network,
            optimiser=optimiser,
            loss=self._loss,
            batches=replace(self.draws, length=steps),
            ranks=self.ranks,
            record=not self.ranks.many,  # an exchange in a recorded step was not tried
            started=self.started,
            seconds=self.settings.seconds,
            callback=callback,
            held=self.judge,
            hold=hold,
            support=MovingSupport(hold, optimiser, counts, choose) if moving else None,
            **given,
        )

    def best_rate(self, moving: bool, within: float) -> float:
        """The rate that fits best in a few steps, the largest first; found in so many seconds.

        A support that moves has much to learn again: its rate is tried on the original cut to as many weights.
        """
        start, masks = copy.deepcopy(self.work), self.masks
        if moving:
            copy_weights_(start, self.original.model)
            kept = {name: int(mask.sum()) for name, mask in masks.items()}
            choose = chooser(start, self.settings.pattern)
            masks = {name: choose(name, weight_of(start, name).detach().abs(), kept[name], 1.0) for name in kept}
        steps, found = min(max(TRIED[0], self.settings.steps // TRIAL), TRIED[1]), []
        for rate in RATES:
            fit = replace(self, masks=masks).fit(copy.deepcopy(start), steps, rate)
            with fit.hold:
                loss = fit.trial(within)
            self.pace = fit.pace or self.pace
            if loss is None:
                break
            found.append((loss, rate))
            if len(found) > 1 and found[-1] > found[-2]:  # smaller ones do less and less
                break
        # A single try, cut short by the time, has nothing to be compared with.
        return min(found)[1] if len(found) > 1 else RATES[len(RATES) // 2]

    def _loss(self, result: Any, target: Any) -> Tensor:
        output, keep = target if isinstance(target, tuple) else (target, None)
        return self.judge.match(outputs_of(result).to(output.dtype), output, keep)


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
