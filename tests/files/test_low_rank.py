"""low_rank: the best approximation of its rank, exact at full rank, the model untouched."""

import pytest
import torch
from torch import nn

from feta.errors import ConfigError, ModelError
from feta.files.low_rank import low_rank


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Sequential(nn.Linear(20, 8))).double()


def test_full_rank_gives_the_same_outputs(model):
    x = torch.randn(9, 6, dtype=torch.float64)
    torch.testing.assert_close(low_rank(model, rank=8)(x), model(x))
    torch.testing.assert_close(low_rank(model, energy=1.0)(x), model(x))


def test_error_is_that_of_the_singular_values_left_out(model):
    W = model[2][0].weight.detach()
    pair = low_rank(model, "2.0", rank=3)[2][0]
    error = torch.linalg.matrix_norm(pair[1].weight @ pair[0].weight - W) ** 2
    torch.testing.assert_close(error, torch.linalg.svdvals(W)[3:].square().sum())


def test_energy_takes_the_least_rank_that_keeps_it(model):
    energies = torch.linalg.svdvals(model[2][0].weight.detach()).square()
    pair = low_rank(model, energy=0.7)[2][0]
    r = pair[0].out_features
    assert energies[:r].sum() / energies.sum() >= 0.7 > energies[: r - 1].sum() / energies.sum()


def test_fewer_weights_and_the_original_untouched(model):
    before = {name: t.clone() for name, t in model.state_dict().items()}
    small = low_rank(model, rank=2)
    count = sum(p.numel() for p in small[2].parameters())
    assert count == 2 * (20 + 8) + 8 < sum(p.numel() for p in model[2].parameters())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert small[2][0][0].weight.dtype == torch.float64


def test_no_bias_stays_no_bias():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3, bias=False))
    assert low_rank(model, rank=2)[1][1].bias is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a rank or an energy"),
        ({"rank": 2, "energy": 0.5}, "a rank or an energy"),
        ({"rank": 0}, "in 1 … 8, got 0"),
        ({"rank": 9}, "in 1 … 8, got 9"),
        ({"energy": 0.0}, r"in \(0, 1\], got 0"),
        ({"layer": "nope", "rank": 1}, "must name a layer of the model, got 'nope'"),
        ({"layer": "1", "rank": 1}, "must be a Linear, got ReLU"),
        ({"model": nn.ReLU(), "rank": 1}, "a model without one"),
        ({"model": nn.Linear(2, 2), "rank": 1}, "got the bare Linear"),
    ],
)
def test_bad_requests(model, options, message):
    with pytest.raises((ConfigError, ModelError), match=message):
        low_rank(**({"model": model} | options))
