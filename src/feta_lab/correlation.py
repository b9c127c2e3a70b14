"""Rank correlation with an interval that stays honest for a handful of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's coefficient of n points; no interval below four."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def positive(self) -> bool:
        """The interval lies above zero."""
        return self.low is not None and self.low > 0

    @property
    def negative(self) -> bool:
        return self.high is not None and self.high < 0


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's coefficient of the ranks, ties at their mean rank; None where one side is constant."""
    value = float(spearman_rows(np.array([xs], dtype=float), np.array([ys], dtype=float))[0])
    return None if math.isnan(value) else value


def spearman_rows(xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Spearman's coefficient of each row of (r, n) against the same row; NaN where one side is constant."""
    x, y = (_ranks(values) for values in (xs, ys))
    x, y = (ranks - ranks.mean(1, keepdims=True) for ranks in (x, y))
    scale = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    value = np.divide((x * y).sum(1), scale, out=np.full(len(x), np.nan), where=scale > 0)
    return np.asarray(value.clip(-1, 1))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks along each row, by counting: how many are smaller, and half of those that are equal."""
    mine, others = values[:, :, None], values[:, None, :]
    return np.asarray((others < mine).sum(2) + (others == mine).sum(2) / 2)


def rank_correlation(
    xs: Sequence[float], ys: Sequence[float], confidence: float = 0.95
) -> RankCorrelation | None:
    """Fisher's z with the standard error of Bonett and Wright (2000), sqrt((1 + r²/2) / (n - 3)).

    Perfect order has no finite z: r is first moved towards zero by half the smallest step it can make,
    6 / (n (n² - 1)). Five points in perfect order then just exclude zero and four do not, as their exact
    permutation tests say (two-sided p of 1/60 and 1/12).
    """
    value, n = spearman(xs, ys), len(xs)
    if value is None or n < 3:
        return None
    if n < 4:
        return RankCorrelation(value, None, None, n)
    within = 1 - 6 / (n * (n * n - 1))
    r = min(max(value, -within), within)
    error = math.sqrt((1 + r * r / 2) / (n - 3))
    reach = float(norm.ppf((1 + confidence) / 2)) * error
    low, high = (math.tanh(math.atanh(r) + side) for side in (-reach, reach))
    return RankCorrelation(value, min(low, value), max(high, value), n)
