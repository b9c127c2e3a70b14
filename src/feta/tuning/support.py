"""A support that moves while a network is fitted: it shrinks along the fit, weights leave and come back.

    kept at t    n - (n - k) (1 - (1 - t / END)^POWER)    of a layer's n weights, k of them at the end
    scores       |w| v^(1/8), v the mean squared gradient: large weights, and of two alike the one that is used more

A dead weight is scored by the step it would take. Where the budget is free, all layers together keep as many.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from feta.layers import LayerView
from feta.masks import ZeroHold
from feta.patterns import parse_pattern
from feta.sparsity import top_k_mask

END = 0.5  # of the fit: from here on the support stays
POWER = 5  # most weights go early, while the rate is high
USE = 0.125  # power of the mean squared gradient


Choose = Callable[[str, Tensor, int, float], Tensor]  # layer, scores, weights to keep, share of the way -> mask


def largest(name: str, scores: Tensor, keep: int, gone: float = 1.0) -> Tensor:
    return top_k_mask(scores, keep)


def chooser(model: nn.Module, pattern: str | None) -> Choose:
    """What chooses the weights that stay: the largest, or those that a pattern keeps."""
    form = parse_pattern(pattern)
    if form is None:
        return largest

    def choose(name: str, scores: Tensor, keep: int, gone: float) -> Tensor:
        view = LayerView.of(model, name)
        return view.shaped(form.over(view.taps).loosened(gone).mask(view.flat(scores), keep))

    return choose


class MovingSupport:
    """The masks of a hold, chosen anew as a fit by Adam goes on."""

    def __init__(
        self,
        hold: ZeroHold,
        optimiser: torch.optim.Optimizer,
        counts: Mapping[str, int],
        choose: Choose | None = largest,
    ) -> None:
        """counts: of the weights that each layer keeps; choose: what chooses in a layer, None: among all at once."""
        self.hold, self.optimiser, self.counts, self.choose = hold, optimiser, dict(counts), choose
        self.settled = False

    @torch.no_grad()
    def move(self, over: float, back: bool = True) -> None:
        """Choose anew, a share `over` of the fit being over; once it is settled nothing moves any more.

        back: whether dead weights may come back: if no step follows, they would stay zeros.
        """
        if self.settled:
            return
        self.settled = over >= END
        gone = 1 - (1 - min(1.0, over / END)) ** POWER
        scores = {name: self._scores(name, back) for name in self.counts}
        if self.choose is None:
            flat = torch.cat([score.flatten() for score in scores.values()])
            mask = largest("", flat, self._keep(len(flat), sum(self.counts.values()), gone))
            parts = mask.split([score.numel() for score in scores.values()])
            masks = {name: part.view_as(scores[name]) for name, part in zip(scores, parts, strict=True)}
        else:
            keep = {name: self._keep(score.numel(), self.counts[name], gone) for name, score in scores.items()}
            masks = {name: self.choose(name, score, keep[name], gone) for name, score in scores.items()}
        self.hold.change_(masks)

    def _keep(self, size: int, count: int, gone: float) -> int:
        return count if self.settled else round(size - (size - count) * gone)

    def _scores(self, name: str, back: bool) -> Tensor:
        weight = self.hold.weight(name)
        state = self.optimiser.state.get(weight)
        if not state:
            return weight.detach().abs()
        group = next(g for g in self.optimiser.param_groups if any(p is weight for p in g["params"]))
        step = group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-12)
        candidate = weight.detach().where(self.hold.masks[name].to(weight.device), step * back)
        used: Tensor = (state["exp_avg_sq"] + 1e-30) ** USE
        return candidate.abs() * used
