"""The split of a budget: the least sum of errors, found by trying every split, and what curves may be."""

import math
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feta.allocation.budget import LEAST_SHARE, Curve, least_error
from feta.allocation.shares import floors_of
from feta.errors import ConfigError, DataError


@st.composite
def curves(draw):
    """Any errors at any counts, dents and rises included."""
    found = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        size = draw(st.integers(1, 9))
        inner = draw(st.sets(st.integers(1, size - 1))) if size > 1 else set()
        counts = tuple(sorted({0, *inner, size}))
        errors = draw(st.lists(st.integers(0, 60).map(float), min_size=len(counts), max_size=len(counts)).map(tuple))
        found[name] = Curve(counts, errors)
    return found


def value(curve: Curve, count: int) -> float:
    """The hull at a whole number, by a straight line between its corners."""
    hull = curve.hull()
    (a, high), (b, low) = next(pair for pair in pairwise(hull) if count <= pair[1][0])
    return high + (low - high) * (count - a) / (b - a)


def total_error(given_curves, kept) -> float:
    return sum(value(curve, kept[name]) for name, curve in given_curves.items())


def brute_force(given_curves, total: int, floors) -> float:
    ranges = [range(floors[name], curve.size + 1) for name, curve in given_curves.items()]
    splits = (split for split in product(*ranges) if sum(split) == total)
    return min(total_error(given_curves, dict(zip(given_curves, split, strict=True))) for split in splits)


@given(curves(), st.data())
def test_no_split_is_better(given_curves, data):
    floors = {name: data.draw(st.integers(0, curve.size)) for name, curve in given_curves.items()}
    most = sum(curve.size for curve in given_curves.values())
    total = data.draw(st.integers(sum(floors.values()), most))
    kept = least_error(given_curves, total, floors)
    assert sum(kept.values()) == total
    assert all(floors[name] <= kept[name] <= curve.size for name, curve in given_curves.items())
    best = brute_force(given_curves, total, floors)
    assert total_error(given_curves, kept) == pytest.approx(best, abs=1e-9)


@given(curves())
def test_a_larger_budget_takes_from_no_layer_and_no_layer_is_emptied(given_curves):
    sizes = {name: curve.size for name, curve in given_curves.items()}
    splits = [
        least_error(given_curves, total, floors_of(sizes, total))
        for total in range(len(sizes), sum(sizes.values()) + 1)
    ]
    assert all(count >= 1 for split in splits for count in split.values())
    for less, more in pairwise(splits):
        assert all(less[name] <= more[name] for name in given_curves)


@given(curves())
def test_the_hull_is_convex_below_the_curve_and_ends_where_it_ends(given_curves):
    for curve in given_curves.values():
        hull = curve.hull()
        slopes = [(f - e) / (b - a) for (a, e), (b, f) in pairwise(hull)]
        assert slopes == sorted(slopes)
        assert max(slopes) <= 0
        assert (hull[0][0], hull[-1][0]) == (0, curve.size)
        levelled = [min(curve.errors[: i + 1]) for i in range(len(curve.errors))]
        for count, error in zip(curve.counts, levelled, strict=True):
            assert value(curve, count) <= error + 1e-9


def test_between_measured_counts_the_error_is_a_power_of_the_count():
    counts = tuple(2**i for i in range(13))
    curve = Curve((0, *counts), (1e6, *(1e4 / k for k in counts)))
    for k in (3, 50, 777, 3000):
        assert value(curve, k) == pytest.approx(1e4 / k, rel=0.01)


def test_power_laws_are_split_as_lagrange_says():
    """E = c / k in each layer: k is in proportion to the root of c."""
    counts = tuple(2**i for i in range(15))
    layers = {
        name: Curve((0, *counts), (2 * c, *(c / k for k in counts)))
        for name, c in (("a", 1.0), ("b", 16.0), ("c", 4.0))
    }
    kept = least_error(layers, 7000)
    assert [kept[name] for name in "abc"] == pytest.approx([1000, 4000, 2000], rel=0.05)


def test_a_layer_that_does_not_matter_gets_what_is_left():
    layers = {"idle": Curve((0, 100), (0.0, 0.0)), "busy": Curve((0, 50), (5.0, 0.0))}
    assert least_error(layers, 40) == {"idle": 0, "busy": 40}
    assert least_error(layers, 40, {"idle": 3, "busy": 0}) == {"idle": 3, "busy": 37}
    assert least_error(layers, 60) == {"idle": 10, "busy": 50}
    assert least_error(layers, 0) == {"idle": 0, "busy": 0}


@pytest.mark.parametrize("total", [-1, 2, 14])
def test_budgets_that_cannot_be_met(total):
    with pytest.raises(ConfigError, match=f"between 3 and 13 weights, got {total}"):
        least_error({"a": Curve((0, 13), (1.0, 0.0))}, total, {"a": 3})


@pytest.mark.parametrize(
    ("counts", "errors", "message"),
    [
        *(
            (counts, (1.0,) * len(counts), "counts must rise from 0")
            for counts in ((0,), (1, 5), (0, 5, 5), (0, 6, 3))
        ),
        ((0, 5), (1.0,), r"Curve.errors must be as many as counts \(2\), got 1"),
        *(((0, 5), (bad, 0.0), "errors must be finite and >= 0") for bad in (math.nan, math.inf, -1.0)),
    ],
)
def test_what_is_no_curve(counts, errors, message):
    with pytest.raises(DataError if "finite" in message else ConfigError, match=message):
        Curve(counts, errors)


def test_errors_are_compounded():
    curve = Curve((0, 1, 2, 3, 4), (8.0, 9.0, 4.0, 0.08, 0.0)).compounded()
    most = -8 * math.log(LEAST_SHARE)
    assert curve.errors == pytest.approx((most, most, 8 * math.log(2), 0.0804, 0), rel=1e-3)
    assert Curve((0, 1), (0.0, 0.0)).compounded().errors == (0.0, 0.0)  # a layer nobody reads
