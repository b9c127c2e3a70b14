"""Rank correlation: the coefficient against scipy's, the interval against exact permutation tests."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from feta_lab.claims.cells import rank_correlation, spearman_rows


@pytest.mark.parametrize("n", [3, 5, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_the_coefficient_is_spearman_s(n, ties):
    x, y = np.random.default_rng(n).normal(size=(2, n))
    if ties:
        x, y = x.round(), (y + x).round()
    assert rank_correlation(x, y).value == pytest.approx(spearmanr(x, y).statistic)


def test_rows_are_independent():
    x, y = np.random.default_rng(0).normal(size=(2, 7, 6))
    x[3] = 1.0
    found = spearman_rows(x, y)
    assert np.isnan(found[3])
    assert found[[0, 6]] == pytest.approx([spearmanr(x[i], y[i]).statistic for i in (0, 6)])


def test_nothing_to_correlate():
    for xs, ys in (([1, 1, 1], [1, 2, 3]), ([1, 2], [1, 2]), ([1, 2, 3, 4], [5, 5, 5, 5])):
        assert rank_correlation(xs, ys) is None
    found = rank_correlation([1, 2, 3], [1, 2, 3])  # three points have no interval
    assert (found.value, found.low, found.high, found.positive, found.negative) == (1.0, None, None, False, False)


@pytest.mark.parametrize(("n", "clear"), [(4, False), (5, True), (8, True)])
def test_perfect_order_excludes_zero_when_a_permutation_test_does(n, clear):
    if n < 8:
        orders = np.array(list(itertools.permutations(range(n))))
        ranks = np.broadcast_to(np.arange(n), orders.shape)
        p = (np.abs(spearman_rows(ranks, orders)) >= 1 - 1e-12).mean()  # two-sided, exact
        assert (p < 0.05) == clear
    up, down = rank_correlation(range(n), range(n)), rank_correlation(range(n), range(n, 0, -1))
    assert (up.positive, down.negative) == (clear, clear)
    assert (up.low, up.high) == (pytest.approx(-down.high), 1.0)


def test_the_interval_covers_the_truth():
    """Normal pairs with correlation 0.6 have a rank correlation of 6/pi asin(0.3) = 0.58."""
    generator = np.random.default_rng(0)
    truth, held = 6 / np.pi * np.arcsin(0.3), 0
    for _ in range(400):
        x, noise = generator.normal(size=(2, 15))
        found = rank_correlation(x, 0.6 * x + 0.8 * noise)
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 400 <= 0.98
