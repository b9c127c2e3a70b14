"""Losses of single layers by depth and by data dimension, and what their rank correlations say together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feta_lab.claims.finding import Answer
from feta_lab.correlation import RankCorrelation
from feta_lab.results import Record

VISIBLE = 1.0  # points: where no layer loses this much, there is no order to explain
MOST = 2 / 3  # the share of sparsities that must agree
# What a layer's input is: the rows its weights multiply (patches, for a convolution), or all of it.
MEASURES = {"rows": "intrinsic_dimension", "whole input": "intrinsic_dimension_maps"}


@dataclass(frozen=True)
class Trend:
    """The rank correlation of a loss with what should explain it, at one sparsity."""

    case: str
    sparsity: float
    correlation: RankCorrelation
    largest: float  # the largest mean loss, in points


@dataclass(frozen=True)
class Layer:
    """One layer of one network: its place, and its mean loss at each sparsity."""

    name: str
    remaining: int  # layers between it and the output
    dimensions: dict[str, float]  # of its inputs, by what was measured
    losses: dict[float, float]


def loss(record: Record) -> float:
    return float(record["dense_accuracy"] - record["accuracy"])


def layers_of(records: Iterable[Record]) -> list[Layer]:
    """The layers of one network, first to last, averaged over its seeds."""
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in records:
        if record["accuracy"] is not None:
            groups.setdefault((record["depth"], record["layer"]), []).append(record)
    return [_layer(name, mine) for (_, name), mine in sorted(groups.items())]


def _layer(name: str, records: Sequence[Record]) -> Layer:
    dimensions = {}
    for measure, field in MEASURES.items():
        values = [r[field] for r in records if r.get(field) is not None]
        if values:
            dimensions[measure] = statistics.fmean(values)
    at: dict[float, list[float]] = {}
    for record in records:
        at.setdefault(record["sparsity"], []).append(loss(record))
    remaining = records[0]["layers"] - records[0]["depth"]
    mean = {sparsity: statistics.fmean(values) for sparsity, values in sorted(at.items())}
    return Layer(name, remaining, dimensions, mean)


def shared_sparsities(layers: Sequence[Layer]) -> list[float]:
    """Those at which every layer was pruned."""
    if not layers:
        return []
    return sorted(set.intersection(*(set(layer.losses) for layer in layers)))


def agreement(trends: Sequence[Trend]) -> Answer:
    """Yes: the interval lies above zero at most sparsities and below at none. No: it falls, not by chance alone."""
    values = [trend.correlation.value for trend in trends]
    positive = sum(trend.correlation.positive for trend in trends)
    negative = sum(trend.correlation.negative for trend in trends)
    if statistics.fmean(values) <= 0 and negative:
        return "no"
    return "yes" if positive >= MOST * len(trends) and not negative else "mixed"
