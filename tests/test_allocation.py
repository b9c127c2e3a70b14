"""Budgets over layers: exact in total, one threshold for all when that is asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.allocation import allocate
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


def test_unknown():
    with pytest.raises(ConfigError, match="unknown allocation 'uniforn'; did you mean 'uniform'"):
        allocate(weights(), 0.5, "uniforn")
