"""Whole numbers in proportion: against weights handed out one by one, and with nothing taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feta.allocation.shares import floors_of, keep_one, proportional

LAYERS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=4)


def one_by_one(weights, sizes, total):
    """Jefferson's rule as it is defined: each next one to the largest weight / (count + 1)."""
    kept = dict.fromkeys(sizes, 1 if total >= len(sizes) else 0)
    for _ in range(total - sum(kept.values())):
        room = [name for name in kept if kept[name] < sizes[name]]
        kept[min(room, key=lambda name: (kept[name] + 1) / weights[name])] += 1
    return kept


@given(LAYERS, st.data())
def test_proportional(layers, data):
    weights = {str(i): float(weight) for i, (weight, _) in enumerate(layers)}
    sizes = {str(i): size for i, (_, size) in enumerate(layers)}
    total = data.draw(st.integers(0, sum(sizes.values())))
    kept = proportional(weights, sizes, total)
    expected = one_by_one(weights, sizes, total)
    assert sum(kept.values()) == total
    # Ties may fall either way: what they are in proportion to may not.
    worst = [max((k[n] / weights[n] for n in k if k[n] > 1), default=0) for k in (kept, expected)]
    assert worst[0] == pytest.approx(worst[1])
    if total < sum(sizes.values()):
        more = proportional(weights, sizes, total + 1)
        assert all(more[name] >= kept[name] for name in kept) or total < len(sizes)


def test_a_full_layer_hands_on_what_it_cannot_take():
    found = proportional({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 5, "b": 100, "c": 100}, 95)
    assert found == {"a": 5, "b": 30, "c": 60}


def test_keep_one():
    assert keep_one({"a": 7, "b": 0, "c": 0}, {"a": 9, "b": 9, "c": 9}) == {"a": 5, "b": 1, "c": 1}
    assert keep_one({"a": 2, "b": 0, "c": 0}, {"a": 9, "b": 9, "c": 9}) == {"a": 2, "b": 0, "c": 0}


def test_floors():
    sizes = {"a": 900, "b": 90, "c": 10}
    assert floors_of(sizes, 400) == {"a": 90, "b": 9, "c": 1}
    assert floors_of(sizes, 11) == {"a": 1, "b": 1, "c": 1}
    assert floors_of(sizes, 2) == {"a": 0, "b": 0, "c": 0}
