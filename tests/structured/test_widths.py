"""How much goes from where: multiply-adds counted by hand, and targets that are met."""

import itertools

import pytest
import torch
from torch import nn

from feta.errors import ConfigError
from feta.structured.groups import Group
from feta.structured.widths import Layer, Widths
from nets import traced


def channels(units, width=1):
    return torch.arange(units * width).reshape(units, width)


def chain():
    """6 -> 20 -> 10 -> 3."""
    layers = [Layer("a", 1.0, 20, 6, 1, 1), Layer("b", 1.0, 10, 20, 1, 1), Layer("c", 1.0, 3, 10, 1, 1)]
    groups = [
        Group("a", {"a": channels(20)}, {"b": channels(20)}),
        Group("b", {"b": channels(10)}, {"c": channels(10)}),
    ]
    return Widths(layers, groups)


def test_layers_are_narrowed_from_both_sides():
    widths = chain()
    assert widths.multiply_adds({"a": 0, "b": 0}) == 6 * 20 + 20 * 10 + 10 * 3
    assert widths.multiply_adds({"a": 5, "b": 4}) == 6 * 15 + 15 * 6 + 6 * 3


def test_convolutions_count_each_place_and_depthwise_ones_have_one_input():
    whole = Layer("conv", 16.0, 8, 6, 2, 9)
    assert whole.multiply_adds(0, 0) == 16 * 8 * 3 * 9
    assert whole.multiply_adds(2, 2) == 16 * 6 * 2 * 9
    assert Layer("deep", 16.0, 8, 8, 8, 9).multiply_adds(3, 0) == 16 * 5 * 9


def test_layers_are_read_from_the_network():
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(6 * 4, 5))
    found = [Layer.of(model, trace) for trace in traced(model, torch.randn(2, 4, 4, 4)).values()]
    assert found == [Layer("0", 4.0, 6, 4, 2, 9), Layer("2", 1.0, 5, 24, 1, 1)]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
def test_both_ways_meet_the_target(share):
    widths, whole = chain(), 350
    errors = {"a": [float(i + 1) ** 2 for i in range(19)], "b": [10.0 * (i + 1) for i in range(9)]}
    for gone in (widths.uniform(share), widths.by_error(share, errors)):
        left = widths.multiply_adds(gone)
        assert left <= (1 - share) * whole
        assert left >= (1 - share) * whole - 30  # no more than the last units
        assert share > 0 or not any(gone.values())


def test_what_costs_nothing_goes_first():
    errors = {"a": [0.0] * 5 + [1e6] * 14, "b": [1.0 * (i + 1) for i in range(9)]}
    gone = chain().by_error(0.3, errors)
    assert gone["a"] >= 5


def test_the_greedy_choice_is_near_the_best_of_all():
    widths = chain()
    torch.manual_seed(0)
    errors = {root: torch.rand(n).sort().values.cumsum(0).tolist() for root, n in (("a", 19), ("b", 9))}
    gone = widths.by_error(0.5, errors)

    def error(a, b):
        return sum(errors[root][count - 1] if count else 0.0 for root, count in (("a", a), ("b", b)))

    every = itertools.product(range(19), range(10))
    best = min(error(*pair) for pair in every if widths.multiply_adds(dict(zip("ab", pair, strict=True))) <= 175)
    assert error(gone["a"], gone["b"]) <= 1.3 * best


def test_some_units_always_stay():
    gone = chain().uniform(0.9)
    assert gone["a"] <= 18
    assert gone["b"] <= 9
    with pytest.raises(ConfigError, match=r"share must be at most 0\.9.*got 0\.999; give 0\.9") as refused:
        chain().uniform(0.999)
    most = float(str(refused.value).rpartition(" ")[2])  # what is to be given can be given
    assert chain().uniform(most) == chain().by_error(most, {"a": [0.0] * 19, "b": [0.0] * 9}) == {"a": 18, "b": 9}
