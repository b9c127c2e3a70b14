"""How far a network's outputs are from the original's: the loss of refinement, chosen by what the outputs are.

    kl       KL(softmax t/T || softmax o/T) T^2 over classes, for scores of classes and tokens; of maps the channels
    cosine   1 - cos(o, t), for embeddings of length one
    mse      |o - t|^2, for everything else

Fits use T = 2: answers that the original is sure of then still say how it sees the other classes. Held-out rows are
judged at T = 1, as the network will be used; scores of classes, where there are rows enough, by |softmax o -
softmax t|_1 / 2: it bounds how often the two answer differently, and rows on which a network is sure and wrong count
once, while KL lets a few of them outvote all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.model import outputs_of
from feta.tuning.stepping import NARROW

Kind = Literal["kl", "mse", "cosine"]
KINDS: tuple[str, ...] = get_args(Kind)
TEMPERATURE = 2.0
SURE = 0.3  # mean of the largest probability, from which on outputs are taken for scores of classes
BY_CHANCE = 1.2  # of few classes: times what it is at the least
SUMS = 0.25  # variance of the mean score, of what independent outputs would have, up to which they are
COMMON, FEW = 0.95, 8  # share of so many samples or more with the same largest output, up to which they are
WHOLE = 8  # times its spread: what the sum of shares of a whole is at the least
APART = 0.9  # times the spread of the others: how far the best score lies from the second


@dataclass(frozen=True)
class Match:
    """A mean over samples, and over positions that are no padding."""

    kind: Kind
    probabilities: bool = False  # the model ends in a softmax
    reason: str = ""
    guessed: bool = False  # from how the outputs are spread
    channels: bool = False  # maps: the second dimension has the classes, and not the last

    def __call__(self, output: Tensor, target: Tensor, keep: Tensor | None = None, T: float = TEMPERATURE) -> Tensor:
        if target.dtype in NARROW:  # squares and logarithms want more room
            output, target = output.float(), target.float()
        if self.kind == "kl":
            one, other = (F.log_softmax(self._scores(value) / T, -1) for value in (output, target))
            return _mean(F.kl_div(one, other, reduction="none", log_target=True).sum(-1) * T**2, keep)
        if self.kind == "cosine":
            return _mean(1 - F.cosine_similarity(output, target, dim=-1), keep)
        each = (output - target).square()
        return _mean(each.mean(-1) if each.ndim > 1 else each, keep)

    def differing(self, output: Tensor, target: Tensor) -> Tensor:
        """Half the sum of the differences of probabilities."""
        one, other = (F.softmax(self._scores(value.float()), -1) for value in (output, target))
        return (one - other).abs().sum(-1).mean() / 2

    def _scores(self, value: Tensor) -> Tensor:
        value = value.movedim(1, -1) if self.channels else value
        return value.clamp_min(1e-8).log() if self.probabilities else value


@torch.no_grad()
def match_for(model: nn.Module, result: Any, kind: str | None = None) -> Match:
    """The match for what a model returned on some samples; a kind that is given is taken.

    Raises ModelError where a model returns no tensor to match.
    """
    output = outputs_of(result)
    near = max(1e-3, 4 * torch.finfo(output.dtype).eps) if output.is_floating_point() else 1e-3
    output, words = output.float(), {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    tokens = output.ndim > 1 and output.shape[-1] in words
    maps = output.ndim > 3 and not tokens and not _shares(output, near)
    output = output.movedim(1, -1) if maps else output
    wide = output.ndim > 1 and output.shape[-1] > 1
    flat = output.reshape(-1, output.shape[-1]) if wide else output.reshape(-1, 1)
    ends_in_softmax = wide and _shares(flat, near)
    kl = partial(Match, "kl", channels=maps)
    if kind is not None:
        return Match(kind, ends_in_softmax, "as asked for", channels=maps)  # type: ignore[arg-type]
    if not wide:
        return Match("mse", reason="one output", channels=maps)
    if ends_in_softmax:
        return kl(True, "the outputs are probabilities")
    if bool((flat <= 1e-3).all()) and _all_one(flat.exp().sum(-1), near):  # which log_softmax leaves as they are
        return kl(reason="the outputs are logarithms of probabilities")
    if not maps and _all_one(flat.norm(dim=-1), near):
        return Match("cosine", reason="the outputs have length one")
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return kl(reason="the model calls them logits")
    if tokens:
        return kl(reason="there is a score for each token")
    if output.ndim <= 3 and _like_scores(flat):
        return kl(reason="the outputs look like scores of classes", guessed=True)
    return Match("mse", reason="the outputs do not look like scores of classes", channels=maps)


def _shares(output: Tensor, near: float) -> bool:
    return bool((output >= 0).all()) and _all_one(output.sum(-1), near)


def _mean(each: Tensor, keep: Tensor | None) -> Tensor:
    return each.mean() if keep is None else (each * keep).sum() / keep.sum().clamp_min(1)


def _all_one(values: Tensor, near: float) -> bool:
    return bool((values - 1).abs().max() < near)


def _like_scores(flat: Tensor) -> bool:
    """Whether one output stands out on most samples, not the same one on all, as scores of classes do.

    Cross-entropy does not see the sum of the scores, so that training often leaves it as it was while the scores
    themselves grow apart; and it parts the best from the others, however these vary. The sum of the outputs of a
    regression varies as they do, or never, as that of shares of a whole.
    """
    if len(flat) >= FEW and int((moving := (flat != flat[0]).any(0)).sum()) > 1:
        flat = flat[:, moving]  # without classes that are masked
    answers, count = flat.argmax(-1), flat.shape[-1]
    if len(flat) >= FEW and float(answers.bincount().max()) > COMMON * len(flat):
        return False
    if float(flat.softmax(-1).amax(-1).mean()) <= max(SURE, BY_CHANCE / count):
        return False
    if len(flat) < 2:
        return True
    sums, spread = flat.sum(-1), float(flat.var(0).mean())
    whole = float(sums.mean().abs()) > WHOLE * float(sums.std()) and float(sums.mean()) ** 2 > count * spread
    if len(flat) >= FEW and whole:
        return False
    return float(sums.var()) <= SUMS * count * spread or _best_apart(flat)


def _best_apart(flat: Tensor) -> bool:
    """Whether the best of at least five outputs lies apart from the others, by their spread, on most samples."""
    if flat.shape[-1] < 5:
        return False
    ordered = flat.sort(-1, descending=True).values
    gap, spread = ordered[:, 0] - ordered[:, 1], ordered[:, 1:].std(-1)
    return float((gap > APART * spread).float().mean()) > 0.5
