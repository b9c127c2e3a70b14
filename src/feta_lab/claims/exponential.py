"""Claim of Figure 3 a and b: the cost of pruning a layer grows exponentially with the remaining depth.

Compared are two laws for the loss of a layer with r layers behind it, both fitted by least squares with two
parameters: a·bʳ and a + c·r. They are fitted at each sparsity with a visible loss short of saturation, once to all
layers and once without the first, because one fragile layer alone makes any steep curve fit.

The exponential fits when b > 1 and it explains at least half of the variance, and more than the line. It wins at a
sparsity when it fits both times and three more things are true both times: the rank correlation of loss and depth is
above zero (95 % interval); the losses are convex beyond chance (the interval of the square term of a parabola lies
above zero), because noise about a line often favours a curve; and b is below the cap of the search. It loses when it
does not fit without the first layer. A network says yes or no when the exponential wins or loses at two thirds of
its sparsities. It takes six layers to tell.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t

from feta_lab import paper
from feta_lab.claims.cells import MOST, VISIBLE, Layer, layers_of, rank_correlation, shared_sparsities
from feta_lab.claims.finding import Answer, Cell, Finding, listed, needs, overall
from feta_lab.results import Record
from feta_lab.results.summaries import by_setting

KEY, CLAIM = "exponential", "That cost grows exponentially with the remaining depth"
NUMBERS = ("factor per layer", "R² exponential", "R² line")
COLUMNS = ("network", "sparsity (%)", *NUMBERS, *(f"{name} without layer 1" for name in NUMBERS))
SATURATED = 0.8  # of what can be lost at all; beyond it a curve must flatten, whatever its law
EXPLAINED = 0.5  # of the variance: a worse fit describes nothing
LAYERS = 6  # without the first, five are left; fewer than five exclude no order by chance
CAP = math.exp(3)  # the largest factor searched; a fit that ends there sets one layer against all others


class Fit(NamedTuple):
    """Both laws on one set of layers: b and R² of the exponential, R² of the line, and what follows."""

    factor: float
    curve: float
    line: float
    fits: bool
    wins: bool


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from the cells of Figure 3 a and b."""
    answers: list[Answer] = []
    rows: list[tuple[Cell, ...]] = []
    parts, few = [], []
    for net, mine in by_setting(records).items():
        if len(layers := layers_of(mine)) < LAYERS:
            few.append(net)
            continue
        room = statistics.fmean(r["dense_accuracy"] for r in mine if r["accuracy"] is not None) - paper.CHANCE
        if fits := _fits(layers, SATURATED * room):
            won = sum(whole.wins and rest.wins for whole, rest in fits.values())
            lost = sum(not rest.fits for _, rest in fits.values())
            enough = MOST * len(fits)
            answers.append("yes" if won >= enough else "no" if lost >= enough else "mixed")
            text = f"{net}: a rising exponential fits, better than a line and beyond chance, at {won} of {len(fits)}"
            parts.append(f"{text} sparsities; without the first layer it does not fit at {lost}")
            for at, pair in fits.items():
                rows.append((net, round(100 * at, 1), *(round(number, 2) for fit in pair for number in fit[:3])))
    if not answers:
        return needs(KEY, CLAIM, f"cells of Figure 3 with {LAYERS} layers and a loss of {VISIBLE:g} point")
    explained = [[max(0.0, float(str(row[column]))) for row in rows] for column in (3, 4, 6, 7)]
    shares = [f"{100 * statistics.fmean(values):.0f} %" for values in explained]
    why = f"The exponential explains {shares[0]} of the variance between layers and a straight line {shares[1]}; "
    why += f"without the first layer they explain {shares[2]} and {shares[3]}."
    why += f" Fewer than {LAYERS} layers ({listed(few)}) cannot tell." if few else ""
    return Finding(KEY, CLAIM, overall(answers), "; ".join(parts) + ".", why, COLUMNS, tuple(rows))


def _fits(layers: Sequence[Layer], most: float) -> dict[float, tuple[Fit, Fit]]:
    """sparsity -> the fit to all layers and that without the first, where the largest loss is visible and free."""
    depth = np.array([layer.remaining for layer in layers], dtype=float)
    found = {}
    for sparsity in shared_sparsities(layers):
        losses = np.array([layer.losses[sparsity] for layer in layers])
        if VISIBLE <= losses.max() <= most and np.ptp(losses[1:]) > 0:
            found[sparsity] = (_fit(depth, losses), _fit(depth[1:], losses[1:]))
    return found


def _fit(depth: np.ndarray, losses: np.ndarray) -> Fit:
    correlation = rank_correlation(list(depth), list(losses))
    line = float(np.corrcoef(depth, losses)[0, 1] ** 2)
    factor, curve = fit_exponential(depth, losses)
    fits = factor > 1 and curve >= EXPLAINED and curve > line
    rises = correlation is not None and correlation.positive
    clear = rises and is_convex(depth, losses) and factor < 0.999 * CAP
    return Fit(factor, curve, line, fits, fits and clear)


def fit_exponential(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """b and R² of the best a·bˣ; the best a for a given b has a closed form, so only b is searched."""
    logs = np.linspace(-2, math.log(CAP), 2001)
    curves = np.exp(logs[:, None] * (x - x.max()))
    scales = (curves @ y) / (curves**2).sum(1)
    misses = ((y - scales[:, None] * curves) ** 2).sum(1)
    best = int(misses.argmin())
    return float(np.exp(logs[best])), float(1 - misses[best] / ((y - y.mean()) ** 2).sum())


def is_convex(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the 95 % interval of the square term of the best parabola lies above zero."""
    terms, covariance = np.polyfit(x, y, 2, cov=True)
    return bool(terms[0] > t.ppf(0.975, len(x) - 3) * np.sqrt(covariance[0, 0]))
