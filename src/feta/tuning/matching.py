"""How far a network's outputs are from the original's: the loss of refinement, chosen by what the outputs are.

    kl       KL(softmax t/T || softmax o/T) T^2 over classes, for scores of classes and tokens
    cosine   1 - cos(o, t), for embeddings of length one
    mse      |o - t|^2, for everything else

Fits use T = 2: answers that the original is sure of then still say how it sees the other classes. Held-out rows are
judged at T = 1, as the network will be used; scores of classes, where there are rows enough, by |softmax o -
softmax t|_1 / 2: it bounds how often the two answer differently, and rows on which a network is sure and wrong count
once, while KL lets a few of them outvote all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
COMMON = 0.95  # share of samples with the same largest output, up to which they are


@dataclass(frozen=True)
class Match:
    """A mean over samples, and over positions that are no padding."""

    kind: Kind
    probabilities: bool = False  # the model ends in a softmax
    reason: str = ""

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
        return value.clamp_min(1e-8).log() if self.probabilities else value


@torch.no_grad()
def match_for(model: nn.Module, result: Any, kind: str | None = None) -> Match:
    """The match for what a model returned on some samples; a kind that is given is taken.

    Raises ModelError where a model returns no tensor to match.
    """
    output = outputs_of(result).float()
    wide = output.ndim > 1 and output.shape[-1] > 1
    flat = output.reshape(-1, output.shape[-1]) if wide else output.reshape(-1, 1)
    ends_in_softmax = wide and bool((flat >= 0).all()) and _all_one(flat.sum(-1))
    if kind is not None:
        return Match(kind, ends_in_softmax, "as asked for")  # type: ignore[arg-type]
    if not wide:
        return Match("mse", reason="one output")
    if ends_in_softmax:
        return Match("kl", True, "the outputs are probabilities")
    if bool((flat <= 1e-3).all()) and _all_one(flat.exp().sum(-1)):  # which log_softmax leaves as they are
        return Match("kl", reason="the outputs are logarithms of probabilities")
    if _all_one(flat.norm(dim=-1)):
        return Match("cosine", reason="the outputs have length one")
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return Match("kl", reason="the model calls them logits")
    words = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    if output.shape[-1] in words:
        return Match("kl", reason="there is a score for each token")
    if output.ndim <= 3 and _like_scores(flat):
        return Match("kl", reason="the outputs look like scores of classes")
    return Match("mse", reason="the outputs do not look like scores of classes")


def _mean(each: Tensor, keep: Tensor | None) -> Tensor:
    return each.mean() if keep is None else (each * keep).sum() / keep.sum().clamp_min(1)


def _all_one(values: Tensor) -> bool:
    return bool((values - 1).abs().max() < 1e-3)


def _like_scores(flat: Tensor) -> bool:
    """Whether one output stands out on most samples, not the same one on all, and their sum hardly moves.

    Cross-entropy does not see the sum of the scores, so that training leaves it as it was while the scores themselves
    grow apart. The sum of the outputs of a regression varies as they do.
    """
    answers, count = flat.argmax(-1), flat.shape[-1]
    commonest = answers.bincount().max() / len(answers)
    if len(flat) > 1 and float(count * flat.mean(-1).var()) > SUMS * float(flat.var(0).mean()):
        return False
    sure = max(SURE, BY_CHANCE / count)
    return bool(flat.softmax(-1).amax(-1).mean() > sure) and (len(flat) < 8 or float(commonest) <= COMMON)
