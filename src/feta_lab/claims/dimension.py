"""The claims on dimension: data of more dimensions prunes worse, and a layer's dimension says how far it may go."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from feta_lab.claims.depth import trend_row
from feta_lab.claims.finding import Answer, Finding, overall, unmeasured
from feta_lab.claims.trends import MEASURES, VISIBLE, Layer, Trend, agreement, layers_of, loss
from feta_lab.correlation import rank_correlation, spearman, spearman_rows
from feta_lab.page import Cell
from feta_lab.results import Record
from feta_lab.summaries import by_setting

SAFE = 1.0  # points that a safely pruned layer may lose
RESAMPLES = 1000


def dimension_trends(records: Sequence[Record], measure: Callable[[Record], float] = loss) -> list[Trend]:
    """Loss against k at each sparsity with a visible loss; every network is a point."""
    found = []
    ran = [record for record in records if record["accuracy"] is not None]
    for sparsity in sorted({record["sparsity"] for record in ran}):
        at = [record for record in ran if record["sparsity"] == sparsity]
        means = _by_k(at)
        correlation = rank_correlation([r["k"] for r in at], [measure(r) for r in at])
        if max(means.values()) >= VISIBLE and correlation is not None:
            found.append(Trend("conv-cifar on k components", sparsity, correlation, max(means.values())))
    return found


def larger_k_is_less_robust(records: Sequence[Record]) -> Finding:
    key, claim = "dimension", "Networks trained on data of more dimensions lose more when pruned"
    trends = dimension_trends(records)
    if not trends:
        return unmeasured(
            key, claim, f"cells of Figure 3 c with two values of k and a loss of {VISIBLE:g} point"
        )
    # More components also make better networks, which have more to lose: the share lost must rise as well.
    shares = dimension_trends(records, lambda record: loss(record) / record["dense_accuracy"])
    text = (
        f"Mean rank correlation of k with the points lost {_mean(trends)}; with the share of the accuracy lost "
        f"{_mean(shares)} ({trends[-1].correlation.n} networks)."
    )
    at = [r for r in records if r["accuracy"] is not None and r["sparsity"] == trends[-1].sparsity]
    means = _by_k(at)
    low, high = min(means), max(means)
    dense = {k: statistics.fmean(r["dense_accuracy"] for r in at if r["k"] == k) for k in (low, high)}
    why = (
        f"At {100 * trends[-1].sparsity:g} % the first layer's pruning costs {means[low]:.1f} points at k = {low} "
        f"(dense {dense[low]:.1f} %) and {means[high]:.1f} at k = {high} (dense {dense[high]:.1f} %)."
    )
    columns = (
        "network",
        "sparsity (%)",
        "rank correlation",
        "95 % interval",
        "networks",
        "largest loss (points)",
    )
    rows = tuple(trend_row(trend) for trend in trends)
    answers = [agreement(measured) for measured in (trends, shares)]
    return Finding(key, claim, overall(answers), text, why, columns, rows)


def _mean(trends: Sequence[Trend]) -> str:
    mean = statistics.fmean(trend.correlation.value for trend in trends)
    clear = sum(trend.correlation.positive for trend in trends)
    return f"{mean:+.2f}, interval above zero at {clear} of {len(trends)} sparsities".replace("-", "−")


def _by_k(records: Sequence[Record]) -> dict[int, float]:
    ks = sorted({record["k"] for record in records})
    return {k: statistics.fmean(loss(r) for r in records if r["k"] == k) for k in ks}


def safe_sparsity(losses: Mapping[float, float], allowed: float = SAFE) -> float:
    """How far a layer may be pruned before it first loses more than is allowed, by linear interpolation."""
    before, lost = 0.0, 0.0
    for sparsity, value in sorted(losses.items()):
        if value > allowed:
            return before + (sparsity - before) * max(0.0, allowed - lost) / (value - lost)
        before, lost = sparsity, value
    return before


def dimension_predicts_better(records: Sequence[Record]) -> Finding:
    """Rank correlation of the safe sparsity with the dimension of a layer's input, against that with its depth.

    Both should be negative; the lead is how much stronger the dimension's is, averaged over the networks, with an
    interval from layers drawn anew. Each way of measuring the dimension answers for itself.
    """
    key = "dimension-predicts"
    claim = "The intrinsic dimension of a layer's input predicts its safe sparsity better than its depth"
    groups = {net: layers_of(mine) for net, mine in by_setting(records).items()}
    answers: list[Answer] = []
    parts = []
    for measure in MEASURES:
        held = [[layer for layer in layers if measure in layer.dimensions] for layers in groups.values()]
        scores = [score for layers in held if (score := _scores(layers, measure)) is not None]
        if not scores:
            continue
        by_dimension, by_depth = (statistics.fmean(score[side] for score in scores) for side in (0, 1))
        lead = by_depth - by_dimension
        low, high = _lead_interval(held, measure)
        ahead = lead > 0 and by_dimension < 0  # less wrong than depth is not a prediction
        answers.append("no" if not ahead else "yes" if low > 0 else "mixed")
        parts.append(
            f"{measure}: {by_dimension:+.2f} for the dimension, {by_depth:+.2f} for the remaining depth, a lead of "
            f"{lead:+.2f} (95 % interval {low:+.2f} to {high:+.2f})"
        )
    if not answers:
        missing = "cells of Figure 3 with intrinsic dimensions of three layers or more and different safe sparsities"
        return unmeasured(key, claim, missing)
    text = f"Rank correlation with the safe sparsity, by {'; by '.join(parts)}.".replace("-", "−")
    columns = (
        "network", "layer", "remaining depth", *(f"dimension, {m}" for m in MEASURES), "safe sparsity (%)",
    )  # fmt: skip
    rows = tuple(_row(net, layer) for net, layers in groups.items() for layer in layers if layer.dimensions)
    return Finding(key, claim, overall(answers), text, _why(groups), columns, rows)


def _row(net: str, layer: Layer) -> tuple[Cell, ...]:
    measured = (layer.dimensions.get(measure) for measure in MEASURES)
    numbers = (None if value is None else round(value, 1) for value in measured)
    return net, layer.name, layer.remaining, *numbers, round(100 * safe_sparsity(layer.losses), 1)


def _scores(layers: Sequence[Layer], measure: str) -> tuple[float, float] | None:
    """Rank correlations of the safe sparsity with dimension and with remaining depth."""
    if len(layers) < 3:
        return None
    safe = [safe_sparsity(layer.losses) for layer in layers]
    by_dimension = spearman([layer.dimensions[measure] for layer in layers], safe)
    by_depth = spearman([layer.remaining for layer in layers], safe)
    return None if by_dimension is None or by_depth is None else (by_dimension, by_depth)


def _lead_interval(groups: Sequence[Sequence[Layer]], measure: str) -> tuple[float, float]:
    """The middle 95 % of the lead over layers drawn with replacement, network by network."""
    generator = np.random.default_rng(0)
    leads = []
    for layers in groups:
        if _scores(layers, measure) is None:
            continue
        drawn = generator.integers(len(layers), size=(RESAMPLES, len(layers)))
        safe = np.array([safe_sparsity(layer.losses) for layer in layers])[drawn]
        dimension = np.array([layer.dimensions[measure] for layer in layers])[drawn]
        depth = np.array([layer.remaining for layer in layers])[drawn]
        leads.append(spearman_rows(depth, safe) - spearman_rows(dimension, safe))
    # A draw of equal layers has no order; it says nothing of its network.
    known = np.ma.masked_invalid(np.stack(leads)).mean(0).compressed()
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def _why(groups: Mapping[str, Sequence[Layer]]) -> str:
    """The two ends of each network: the layer that stands least and the one that stands most."""
    parts = []
    for net, layers in groups.items():
        ordered = sorted(
            (layer for layer in layers if layer.dimensions), key=lambda one: safe_sparsity(one.losses)
        )
        if len(ordered) < 2:
            continue
        measure = next(iter(ordered[0].dimensions))
        ends = [
            f"{layer.name} (dimension {layer.dimensions[measure]:.1f}, {layer.remaining} behind it)"
            for layer in (ordered[0], ordered[-1])
            if measure in layer.dimensions
        ]
        parts.append(f"in {net} the most fragile layer is {ends[0]}, the most robust {ends[-1]}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
