"""The claims of Figure 3 a and b: a layer's loss grows with the depth that remains behind it, exponentially."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from feta_lab.claims.finding import Answer, Finding, listed, overall, unmeasured
from feta_lab.claims.trends import MOST, VISIBLE, Layer, Trend, agreement, layers_of, shared_sparsities
from feta_lab.correlation import rank_correlation
from feta_lab.page import Cell
from feta_lab.results import Record
from feta_lab.summaries import by_setting

CHANCE = 10.0  # percent: all three data sets have ten classes
SATURATED = 0.8  # of what can be lost at all; beyond it a curve must flatten, whatever its law
EXPLAINED = 0.5  # of the variance: a worse fit describes nothing


def depth_trends(records: Sequence[Record]) -> dict[str, list[Trend]]:
    """Per network, at each sparsity with a visible loss: loss against remaining depth, layers as points."""
    found: dict[str, list[Trend]] = {}
    for net, mine in by_setting(records).items():
        layers = layers_of(mine)
        for sparsity in shared_sparsities(layers):
            losses = [layer.losses[sparsity] for layer in layers]
            correlation = rank_correlation([layer.remaining for layer in layers], losses)
            if max(losses) >= VISIBLE and correlation is not None:
                found.setdefault(net, []).append(Trend(net, sparsity, correlation, max(losses)))
    return found


def accuracy_falls_with_depth(records: Sequence[Record]) -> Finding:
    key = "depth"
    claim = "Pruning one layer costs more accuracy the more layers remain behind it"
    trends = depth_trends(records)
    if not trends:
        return unmeasured(
            key, claim, f"cells of Figure 3 with three layers or more and a loss of {VISIBLE:g} point"
        )
    answers = {net: agreement(mine) for net, mine in trends.items()}
    parts = [_words(net, mine) for net, mine in trends.items()]
    why = []
    for net in trends:
        layers = layers_of(by_setting(records)[net])
        at = max(shared_sparsities(layers))
        worst = max(layers, key=lambda layer: layer.losses[at])
        place = f"layer {layers.index(worst) + 1} of {len(layers)} ({worst.name})"
        why.append(f"in {net} {place} loses most at {100 * at:g} %: {worst.losses[at]:.1f} points")
    few = [net for net, mine in trends.items() if mine[0].correlation.n < 5]
    sentence = "; ".join(why)
    sentence = sentence[:1].upper() + sentence[1:] + "."
    if few:
        sentence += f" Four layers or fewer ({listed(few)}) cannot exclude chance, however they are ordered."
    columns = (
        "network",
        "sparsity (%)",
        "rank correlation",
        "95 % interval",
        "layers",
        "largest loss (points)",
    )
    rows = tuple(trend_row(trend) for mine in trends.values() for trend in mine)
    return Finding(
        key, claim, overall(list(answers.values())), "; ".join(parts) + ".", sentence, columns, rows
    )


def _words(net: str, trends: Sequence[Trend]) -> str:
    mean = statistics.fmean(trend.correlation.value for trend in trends)
    clear = sum(trend.correlation.positive for trend in trends)
    text = f"{net}: mean rank correlation {mean:+.2f}, interval above zero at {clear} of {len(trends)} sparsities"
    return text.replace("-0", "−0").replace("-1", "−1")


def trend_row(trend: Trend) -> tuple[Cell, ...]:
    r = trend.correlation
    interval = None if r.low is None or r.high is None else f"{r.low:+.2f} to {r.high:+.2f}".replace("-", "−")
    return (
        trend.case,
        round(100 * trend.sparsity, 1),
        round(r.value, 2),
        interval,
        r.n,
        round(trend.largest, 1),
    )


def loss_is_exponential(records: Sequence[Record]) -> Finding:
    """a·bʳ with b > 1 against a + c·r, both by least squares with two parameters, at each sparsity."""
    key = "exponential"
    claim = "That cost grows exponentially with the remaining depth"
    answers: list[Answer] = []
    rows: list[tuple[Cell, ...]] = []
    parts, bases = [], []
    for net, mine in by_setting(records).items():
        fits = _fits(layers_of(mine), mine)
        if not fits:
            continue
        won = [b > 1 and curve > line and curve >= EXPLAINED for _, b, curve, line in fits]
        share = sum(won) / len(won)
        answers.append("yes" if share >= MOST else "no" if share <= 1 - MOST else "mixed")
        parts.append(
            f"{net}: a rising exponential fits, and better than a line, at {sum(won)} of {len(won)} sparsities"
        )
        bases += [b for _, b, _, _ in fits]
        rows += [
            (net, round(100 * s, 1), round(b, 2), round(curve, 2), round(line, 2))
            for s, b, curve, line in fits
        ]
    if not answers:
        missing = (
            f"cells of Figure 3 with four layers or more and a loss of {VISIBLE:g} point short of saturation"
        )
        return unmeasured(key, claim, missing)
    why = (
        f"The fitted loss changes by a factor of {statistics.median(bases):.2f} per remaining layer (median); the "
        f"exponential explains {_share(rows, 3)} of the variance between layers, a straight line {_share(rows, 4)}."
    )
    columns = ("network", "sparsity (%)", "factor per layer", "R² exponential", "R² line")
    return Finding(key, claim, overall(answers), "; ".join(parts) + ".", why, columns, tuple(rows))


def _share(rows: Sequence[tuple[Cell, ...]], column: int) -> str:
    return f"{100 * statistics.fmean(max(0.0, float(str(row[column]))) for row in rows):.0f} %"


def _fits(layers: Sequence[Layer], records: Sequence[Record]) -> list[tuple[float, float, float, float]]:
    """(sparsity, factor per layer, R² of the exponential, R² of the line) where the loss is visible and free."""
    if len(layers) < 4:
        return []
    room = max(r["dense_accuracy"] for r in records if r["accuracy"] is not None) - CHANCE
    found = []
    for sparsity in shared_sparsities(layers):
        losses = np.array([layer.losses[sparsity] for layer in layers])
        if VISIBLE <= losses.max() <= SATURATED * room and np.ptp(losses) > 0:
            depth = np.array([layer.remaining for layer in layers], dtype=float)
            found.append((sparsity, *fit_exponential(depth, losses), fit_line(depth, losses)))
    return found


def fit_exponential(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """b and R² of the best a·bˣ; for a given b the best a has a closed form, so b alone is searched."""
    logs = np.linspace(-2, 3, 2001)
    curves = np.exp(logs[:, None] * (x - x.max()))
    scales = (curves @ y) / (curves**2).sum(1)
    misses = ((y - scales[:, None] * curves) ** 2).sum(1)
    best = int(misses.argmin())
    return float(np.exp(logs[best])), float(1 - misses[best] / ((y - y.mean()) ** 2).sum())


def fit_line(x: np.ndarray, y: np.ndarray) -> float:
    slope, start = np.polyfit(x, y, 1)
    return float(1 - ((y - start - slope * x) ** 2).sum() / ((y - y.mean()) ** 2).sum())
