"""The three-step procedure: how far a margin carries, and where it ends."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from feta.certificates.chain import chain_of
from feta.errors import ConfigError
from feta.theory.perturbation import blend, measure
from feta.theory.robustness import Manifold, Setting
from feta.theory.theorems import all_layers, three_steps

X = torch.tensor([[0.1, 0.0], [0.0, 0.2]], dtype=torch.float64)
SETTING = Setting(Manifold(2.0, 1.0), 2, 2)


def chain(first: float, second: float):
    layer = nn.Linear(2, 2, bias=False).double()
    layer.weight.data = torch.diag(torch.tensor([first, second], dtype=torch.float64))
    return chain_of(nn.Sequential(layer), X)


def test_a_small_change_arrives_at_once():
    dense, pruned = chain(1, 1), chain(1, 0.9)
    walk = three_steps(dense, pruned, [X], SETTING, labels=torch.tensor([0, 0]))
    assert walk.arrived
    assert [start.at for start in walk.starts] == [0.0]
    assert walk.starts[0].accuracy == 50
    assert walk.bound == all_layers(measure(dense, pruned, [X]), SETTING, "paper")
    assert walk.log_needed == 0


def test_a_larger_change_needs_more_starts():
    """γ = sqrt(2) · 0.1, loss e · 0.2² · ‖H‖: with ‖H‖ = 3 the margin is gone at sqrt(2) / (e · 0.4 · 3)."""
    dense, pruned = chain(1, 1), chain(1, 4)
    walk = three_steps(dense, pruned, [X], SETTING, max_starts=20)
    first, second = walk.starts[:2]
    assert first.accuracy is None
    assert second.at == pytest.approx(math.sqrt(2) * 0.1 / (math.e * 0.04 * 3))
    assert math.exp(first.log_reach) == pytest.approx(second.at)
    assert walk.arrived
    assert 1 < len(walk.starts) < 20
    assert walk.log_needed == pytest.approx(math.log(len(walk.starts)))
    last = blend(dense, pruned, walk.starts[-1].at)
    assert walk.bound == all_layers(measure(last, pruned, [X]), SETTING, "paper")


def test_what_is_out_of_reach_is_said():
    walk = three_steps(chain(1, 1), chain(1, 1e6), [X], SETTING, max_starts=3)
    assert (walk.arrived, walk.bound, len(walk.starts)) == (False, None, 3)
    assert walk.log_needed > math.log(1e4)
    assert 0 < walk.starts[1].at < walk.starts[2].at < 1e-3


def test_no_margin_no_way():
    """A tie at the start: the step is zero, and there is no second start."""
    walk = three_steps(chain(0, 0), chain(1, 2), [X], SETTING)
    assert len(walk.starts) == 1
    assert (walk.arrived, walk.log_needed) == (False, math.inf)


def test_bad_input():
    with pytest.raises(ConfigError, match="max_starts must be >= 1, got 0"):
        three_steps(chain(1, 1), chain(1, 1), [X], SETTING, max_starts=0)
