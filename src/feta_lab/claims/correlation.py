"""Spearman's rank correlation, with an interval that is honest for a handful of points.

r = Pearson's coefficient of the ranks, ties at their mean rank
95 % interval: tanh(atanh(r) ± 1.96 · sqrt((1 + r²/2) / (n - 3)))      (Fisher's z; Bonett and Wright, 2000)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's coefficient of n points with its 95 % interval; fewer than four points have no interval."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def positive(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low is not None and self.low > 0

    @property
    def negative(self) -> bool:
        """Whether the interval lies below zero."""
        return self.high is not None and self.high < 0


def spearman_rows(xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Spearman's coefficient of each row of `xs` (r, n) with the same row of `ys`; NaN where one is constant."""
    x, y = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (xs, ys))
    scale = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    value = np.divide((x * y).sum(1), scale, out=np.full(len(x), np.nan), where=scale > 0)
    return np.asarray(value.clip(-1, 1))


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> RankCorrelation | None:
    """Spearman's coefficient of two lists; None below three points, or where one list is constant.

    Perfect order has no finite z, so r is first moved towards zero by half the smallest step it can make,
    6 / (n (n² - 1)). Five points in perfect order then just exclude zero and four do not, as their exact
    permutation tests say (two-sided p of 1/60 and 1/12).
    """
    n = len(xs)
    value = float(spearman_rows(np.array([xs], dtype=float), np.array([ys], dtype=float))[0])
    if n < 3 or math.isnan(value):
        return None
    if n < 4:
        return RankCorrelation(value, None, None, n)
    within = 1 - 6 / (n * (n * n - 1))
    r = min(max(value, -within), within)
    reach = 1.959964 * math.sqrt((1 + r * r / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(r) + side) for side in (-reach, reach))
    return RankCorrelation(value, min(low, value), max(high, value), n)
