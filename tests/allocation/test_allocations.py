"""Budgets over layers: exact in total, one threshold for all when that is asked for."""

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.allocation import make_allocation
from feta.allocation.base import Budget
from feta.allocation.budget import Curve
from feta.errors import ConfigError
from feta.sparsity import Sparsity

SIZES = {"a": (7, 5), "b": (3, 11), "c": (2, 2, 3, 3)}


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = zip(SIZES.items(), (1.0, 3.0, 0.1), strict=True)
    return {name: torch.randn(shape, generator=generator) * scale for (name, shape), scale in scales}


def allocate(given_weights, share, allocation, probe=None):
    return make_allocation(allocation).allocate(Budget(given_weights, share, probe))


def test_by_rule():
    assert allocate(weights(), 0.8, "uniform") == {"a": 7, "b": 7, "c": 7}
    assert allocate(weights(), 0.5, "erk") == {"a": 18, "b": 20, "c": 14}  # sides 12 : 14 : 10, 52 together
    ties = {"a": torch.ones(3, 3), "b": torch.ones(3, 3)}
    assert allocate(ties, 0.5, "global-magnitude") == {"a": 8, "b": 1}
    with pytest.raises(ConfigError, match="unknown allocation 'uniforn'; did you mean 'uniform'"):
        make_allocation("uniforn")


@given(st.integers(0, 99), st.integers(0, 5))
def test_global_magnitude_is_one_threshold_with_an_exact_total(percent, seed):
    share, given_weights = percent / 100, weights(seed)
    found = allocate(given_weights, share, "global-magnitude")
    everything = torch.cat([w.flatten() for w in given_weights.values()]).abs()
    keep = Sparsity(share).count(len(everything))
    assert sum(found.values()) == keep
    least = everything.sort(descending=True).values[keep - 1] if keep else torch.tensor(float("inf"))
    above = {n: int((w.abs() >= least).sum()) for n, w in given_weights.items()}
    if keep >= len(SIZES):  # no layer is emptied: the fullest makes up for it
        fullest = max(above, key=lambda n: above[n])
        empty = [n for n in above if above[n] == 0]
        above |= dict.fromkeys(empty, 1) | {fullest: above[fullest] - len(empty)}
    assert found == above


class Known:
    """A probe whose curves are known; gains are 1, and `bound` takes roots."""

    errors: ClassVar = {"a": 1.0, "b": 1.0, "c": 9.0}

    def curves(self, names, measure):
        assert measure == self.expected
        return {name: Curve((0, weights()[name].numel()), (self.errors[name], 0.0)) for name in names}

    def __init__(self, expected):
        self.expected = expected

    def gains(self):
        return dict.fromkeys(self.errors, 1.0)


@pytest.mark.parametrize(("allocation", "measure"), [("sensitivity", "outputs"), ("bound", "response")])
def test_measured_allocations_go_by_the_steepest_curve(allocation, measure):
    # The flattest layer keeps a quarter of its uniform share.
    assert allocate(weights(), 0.5, allocation, Known(measure)) == {"a": 4, "b": 12, "c": 36}
    with pytest.raises(ConfigError, match="data must be given for an allocation that measures"):
        allocate(weights(), 0.5, allocation)
