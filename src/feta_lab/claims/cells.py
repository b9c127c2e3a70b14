"""What rules compare: runs of methods seed by seed; losses of layers and networks, and their rank correlations.

r = Pearson's coefficient of the ranks, ties at their mean rank      (Spearman)
95 % interval: tanh(atanh(r) ± 1.96 · sqrt((1 + r²/2) / (n - 3)))      (Fisher's z; Bonett and Wright, 2000)
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from feta_lab import paper
from feta_lab.claims.finding import Answer, Cell, signed
from feta_lab.records import groups
from feta_lab.results import Record
from feta_lab.results.summaries import at_sparsity, by_setting

EQUAL = 0.1  # points within which two accuracies count as equal: 5 images of a test half of 5,000
VISIBLE = 1.0  # points: where no layer loses this much, there is no order to explain
MOST = 2 / 3  # the share of sparsities that must agree
# What a layer's input is: the rows its weights multiply (patches, for a convolution), or all of it.
MEASURES = {"rows": "intrinsic_dimension", "whole input": "intrinsic_dimension_maps"}

Runs = Mapping[str, Mapping[int, Record]]  # method -> seed -> record


def runs_of(records: Sequence[Record]) -> Mapping[str, Runs]:
    """network -> method -> seed -> record, at the paper's sparsity; cells without a result are left out."""
    found = {}
    for net, mine in by_setting(at_sparsity(records, paper.SPARSITY)).items():
        methods = groups((record for record in mine if record["accuracy"] is not None), "method")
        found[net] = {method: {record["seed"]: record for record in held} for (method,), held in methods.items()}
    return found


def shared(runs: Runs, ours: str, theirs: str) -> list[tuple[Record, Record]]:
    """The records of two methods, seed by seed, for the seeds that both have."""
    mine, other = runs.get(ours, {}), runs.get(theirs, {})
    return [(mine[seed], other[seed]) for seed in sorted(set(mine) & set(other))]


def gains(runs: Runs, ours: str, theirs: str = "threshold") -> list[float]:
    """How many points of accuracy one method is ahead of another, seed by seed."""
    return [a["accuracy"] - b["accuracy"] for a, b in shared(runs, ours, theirs)]


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


@dataclass(frozen=True)
class Trend:
    """The rank correlation of a loss with what should explain it, at one sparsity."""

    case: str
    sparsity: float
    correlation: RankCorrelation
    largest: float  # the largest mean loss in points
    rises: bool  # whether the rule accepts it as a rise

    def row(self) -> tuple[Cell, ...]:
        """case, sparsity in percent, coefficient, interval, points, largest loss."""
        r = self.correlation
        interval = None if r.low is None or r.high is None else f"{signed(r.low)} to {signed(r.high)}"
        share, largest = round(100 * self.sparsity, 1), round(self.largest, 1)
        return self.case, share, round(r.value, 2), interval, r.n, largest


@dataclass(frozen=True)
class Layer:
    """One layer of one network: its place, and its mean loss over the seeds at each sparsity."""

    name: str
    remaining: int  # layers between it and the output
    dimensions: dict[str, float]  # of its inputs, by what was measured
    losses: dict[float, float]


def loss(record: Record) -> float:
    """Points of accuracy lost by pruning."""
    return float(record["dense_accuracy"] - record["accuracy"])


def layers_of(records: Iterable[Record]) -> list[Layer]:
    """The layers of one network, first to last, averaged over its seeds."""
    layers, found = groups((r for r in records if r["accuracy"] is not None), "depth", "layer"), []
    for (depth, name), mine in sorted(layers.items()):
        measured = {m: [r[f] for r in mine if r.get(f) is not None] for m, f in MEASURES.items()}
        dimensions = {measure: statistics.fmean(values) for measure, values in measured.items() if values}
        found.append(Layer(name, mine[0]["layers"] - depth, dimensions, mean_by(mine, "sparsity", loss)))
    return found


def mean_by(records: Sequence[Record], field: str, number: Callable[[Record], float]) -> dict[Any, float]:
    """The values of a field in order, each with the mean of a number over its records."""
    values = sorted({record[field] for record in records})
    return {one: statistics.fmean(number(r) for r in records if r[field] == one) for one in values}


def shared_sparsities(layers: Sequence[Layer]) -> list[float]:
    """The sparsities at which every layer was pruned."""
    return sorted(set.intersection(*(set(layer.losses) for layer in layers))) if layers else []


def agreement(trends: Sequence[Trend]) -> Answer:
    """Yes: it rises at two thirds of the sparsities and falls at none. No: it falls on the whole, beyond chance."""
    if any(trend.correlation.negative for trend in trends):
        return "no" if statistics.fmean(trend.correlation.value for trend in trends) <= 0 else "mixed"
    return "yes" if sum(trend.rises for trend in trends) >= MOST * len(trends) else "mixed"


def summary(trends: Sequence[Trend]) -> str:
    """The mean coefficient, and at how many sparsities its interval lies above zero."""
    mean = statistics.fmean(trend.correlation.value for trend in trends)
    clear = sum(trend.correlation.positive for trend in trends)
    return f"{signed(mean)}, interval above zero at {clear} of {len(trends)} sparsities"
