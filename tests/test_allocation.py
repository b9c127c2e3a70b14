"""Budgets over layers: exact in total, one threshold for all when that is asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.allocation import allocate
from feta.allocation.budget import Curve
from feta.errors import ConfigError
from feta.sparsity import Sparsity

SIZES = {"a": (7, 5), "b": (3, 11), "c": (2, 2, 3, 3)}


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * scale
        for (name, shape), scale in zip(SIZES.items(), (1.0, 3.0, 0.1), strict=True)
    }


def test_uniform_gives_every_layer_the_share():
    assert allocate(weights(), 0.8) == {name: Sparsity(0.8) for name in SIZES}


@given(st.integers(0, 99), st.integers(0, 5))
def test_global_magnitude_is_one_threshold_with_an_exact_total(percent, seed):
    share, given_weights = percent / 100, weights(seed)
    found = allocate(given_weights, share, "global-magnitude")
    everything = torch.cat([w.flatten() for w in given_weights.values()]).abs()
    keep = Sparsity(share).count(len(everything))
    assert sum(target.nonzeros for target in found.values()) == keep
    least = everything.sort(descending=True).values[keep - 1] if keep else torch.tensor(float("inf"))
    above = {n: int((w.abs() >= least).sum()) for n, w in given_weights.items()}
    if keep >= len(SIZES):  # no layer is emptied: the fullest makes up for it
        fullest = max(above, key=lambda n: above[n])
        empty = [n for n in above if above[n] == 0]
        above |= dict.fromkeys(empty, 1) | {fullest: above[fullest] - len(empty)}
    assert {n: t.nonzeros for n, t in found.items()} == above


def test_ties_over_layers_are_still_exact():
    found = allocate({"a": torch.ones(3, 3), "b": torch.ones(3, 3)}, 0.5, "global-magnitude")
    assert [target.nonzeros for target in found.values()] == [8, 1]


def test_erk_goes_by_the_sides_of_a_layer():
    found = allocate(weights(), 0.5, "erk")
    assert sum(target.nonzeros for target in found.values()) == 52
    assert [target.nonzeros for target in found.values()] == [18, 20, 14]  # 12 : 14 : 10


def test_measured_allocations_need_a_curve_for_each_layer():
    curves = {name: Curve((0, w.numel()), (1.0, 0.0)) for name, w in weights().items()}
    found = allocate(weights(), 0.5, "bound", curves | {"c": Curve((0, 36), (9.0, 0.0))})
    # The steepest first; the flattest has a quarter of its uniform share.
    assert {name: target.nonzeros for name, target in found.items()} == {"a": 4, "b": 12, "c": 36}
    for given_curves, got in ((None, "None"), ({"a": curves["a"]}, r"\['a'\]")):
        with pytest.raises(ConfigError, match=rf"each of \['a', 'b', 'c'\] for 'sensitivity', got {got}"):
            allocate(weights(), 0.5, "sensitivity", given_curves)


def test_unknown():
    with pytest.raises(ConfigError, match="unknown allocation 'uniforn'; did you mean 'uniform'"):
        allocate(weights(), 0.5, "uniforn")
