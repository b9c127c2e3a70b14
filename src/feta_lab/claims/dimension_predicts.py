"""Claim: the intrinsic dimension of a layer's input predicts its safe sparsity better than its depth.

The safe sparsity of a layer is how far it can be pruned before it loses more than a point. Compared are two rank
correlations with it, averaged over the networks: that of the dimension and that of the remaining depth; both should
be negative. The lead is how much lower the dimension's is. Each way of measuring the dimension says yes when the
dimension's correlation is negative and leads; when the 95 % interval of the lead, over layers drawn with
replacement, lies above zero; and when at most 2.5 % of 1,000 shuffles of the dimensions reach as low a correlation.
Without the last, any dimension would beat a depth that predicts the wrong way. It says no when the dimension does not
lead or its correlation is not negative. The claim holds when every measure says yes.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from feta_lab.claims.cells import MEASURES, Layer, layers_of, spearman_rows
from feta_lab.claims.finding import LEVEL, Answer, Cell, Finding, needs, overall, sentence, signed
from feta_lab.results import Record
from feta_lab.results.summaries import by_setting

KEY = "dimension-predicts"
CLAIM = "The intrinsic dimension of a layer's input predicts its safe sparsity better than its depth"
COLUMNS = ("network", "layer", "remaining depth", *(f"dimension, {m}" for m in MEASURES), "safe sparsity (%)")
SAFE = 1.0  # points that a safely pruned layer may lose
DRAWS = 1000


def safe_sparsity(losses: Mapping[float, float]) -> float:
    """How far a layer may be pruned before it first loses more than a point, by linear interpolation."""
    before, lost = 0.0, 0.0
    for sparsity, value in sorted(losses.items()):
        if value > SAFE:
            return before + (sparsity - before) * max(0.0, SAFE - lost) / (value - lost)
        before, lost = sparsity, value
    return before


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from the cells of Figure 3 a and b."""
    groups = {net: layers_of(mine) for net, mine in by_setting(records).items()}
    answers: list[Answer] = []
    parts = []
    for measure in MEASURES:
        if not (score := _score(groups.values(), measure)):
            continue
        by_dimension, by_depth, low, high, luck = score
        ahead = by_dimension < min(by_depth, 0)  # to be less wrong than depth is not a prediction
        answers.append("no" if not ahead else "yes" if low > 0 and luck <= LEVEL / 2 else "mixed")
        lead = f"a lead of {signed(by_depth - by_dimension)} (95 % interval {signed(low)} to {signed(high)}; "
        lead += f"shuffled dimensions do as well in {100 * luck:.0f} % of draws)"
        numbers = f"{signed(by_dimension)} for the dimension, {signed(by_depth)} for the remaining depth"
        parts.append(f"{measure}: {numbers}, {lead}")
    if not answers:
        return needs(KEY, CLAIM, "cells of Figure 3 with dimensions of three layers that lose differently")
    text = f"Rank correlation with the safe sparsity, by {'; by '.join(parts)}."
    rows: list[tuple[Cell, ...]] = []
    why = []
    for net, layers in groups.items():
        known = [layer for layer in layers if layer.dimensions]
        for one in known:
            sizes = (round(one.dimensions[m], 1) if m in one.dimensions else None for m in MEASURES)
            rows.append((net, one.name, one.remaining, *sizes, round(100 * safe_sparsity(one.losses), 1)))
        known.sort(key=lambda one: safe_sparsity(one.losses))
        if known:
            why.append(f"in {net} the most fragile layer is {_words(known[0])}, the most robust {_words(known[-1])}")
    return Finding(KEY, CLAIM, overall(answers), text, sentence(why), COLUMNS, tuple(rows))


def _words(layer: Layer) -> str:
    dimension = next(iter(layer.dimensions.values()))
    return f"{layer.name} (dimension {dimension:.1f}, {layer.remaining} behind it)"


def _score(groups: Iterable[Sequence[Layer]], measure: str) -> tuple[float, ...]:
    """Mean correlations of dimension and depth, the interval of the lead, and how often shuffles do as well.

    Empty where no network has three layers with an order.
    """
    bootstrap, shuffle = (np.random.default_rng(0) for _ in range(2))
    real, leads, lucky = [], [], []
    for layers in groups:
        held = [layer for layer in layers if measure in layer.dimensions]
        points = [(one.dimensions[measure], one.remaining, safe_sparsity(one.losses)) for one in held]
        dimension, depth, safe = np.array(points).reshape(-1, 1, 3).T  # each of shape (1, layers)
        pair = [spearman_rows(values, safe)[0] for values in (dimension, depth)]
        if len(held) < 3 or np.isnan(pair).any():
            continue
        real.append(pair)
        drawn = bootstrap.integers(len(held), size=(DRAWS, len(held)))
        by_depth, by_dimension = (spearman_rows(x[0, drawn], safe[0, drawn]) for x in (depth, dimension))
        leads.append(by_depth - by_dimension)
        shuffled = shuffle.permuted(dimension.repeat(DRAWS, axis=0), axis=1)
        lucky.append(spearman_rows(shuffled, safe.repeat(DRAWS, axis=0)))
    if not real:
        return ()
    means = np.mean(real, axis=0)
    # A draw of equal layers has no order, and says nothing about its network.
    known = np.ma.masked_invalid(np.stack(leads)).mean(0).compressed()
    luck = (np.mean(lucky, axis=0) <= means[0] + 1e-9).mean()
    return *map(float, means), *map(float, np.quantile(known, [0.025, 0.975])), float(luck)
