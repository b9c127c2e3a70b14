"""Scores and margins.

A sample's gap is its largest output minus the second largest. The score of the paper is sqrt(2) times the gap,
v^T f(x) with v = sqrt(2) (delta_g − delta_j): a vector of norm 2, with which

    score(x) <= Lipschitz constant · distance to the decision boundary

fails by a factor of two. With v of norm 1 the score is gap / sqrt(2), and it holds: that is `sound`.
Margins are kept as logarithms: a product of spectral norms leaves the range of floats.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Form = Literal["paper", "sound"]
SCORE_FACTOR: dict[Form, float] = {"paper": math.sqrt(2), "sound": 1 / math.sqrt(2)}


def gaps(outputs: Tensor) -> Tensor:
    """(samples,) the largest output minus the second largest."""
    top = outputs.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def log_scores(gap: Tensor, form: Form) -> Tensor:
    """(samples,) ln of the score; minus infinity at a tie."""
    return gap.double().log() + math.log(SCORE_FACTOR[form])


def log_left(log_score: Tensor, log_lost: Tensor) -> Tensor:
    """(samples,) ln(score − lost), minus infinity where nothing is left; lost may be beyond all floats."""
    share = (log_lost - log_score).masked_fill(log_score == -math.inf, math.inf).clamp(max=0.0)
    return torch.where(share < 0, log_score + torch.log1p(-share.exp()), -math.inf)
