"""Importance of outputs against the Jacobian, and that the model is left as it was."""

import pytest
import torch
from torch import nn

from feta.calibration.importance import output_importance

X = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)).double().eval()


def importance(model: nn.Module, names=("0",), x=X, **options) -> dict[str, torch.Tensor]:
    return output_importance(model, names, x, **options)


def test_it_is_the_jacobians_size_where_the_output_is_active(model):
    """Up to a common factor, and to the noise of random signs."""
    found = importance(model, probes=3000)["0"]
    z = model[0](X)
    active = (z > 0).double()
    squares = model[2].weight.square().sum(0) * active  # (samples, outputs): d logit / d z is 0 where inactive
    expected = (squares.sum(0) / active.sum(0).clamp_min(1)).sqrt()
    torch.testing.assert_close(found / found.mean(), expected / expected.mean(), rtol=0.05, atol=0.01)


def test_outputs_nothing_reads_do_not_matter(model):
    with torch.no_grad():
        model[2].weight[:, 2] = 0
    found = importance(model)["0"]
    assert found[2] == 0
    assert (found[[0, 1, 3, 4, 5]] > 0).all()


def test_convolutions_are_weighed_per_channel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval()
    assert importance(model, x=torch.randn(5, 1, 4, 4))["0"].shape == (4,)


def test_the_seed_decides(model):
    first, second, third = (importance(model, seed=seed)["0"] for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_frozen_model_with_whole_number_inputs(model):
    torch.manual_seed(0)
    embedded = nn.Sequential(nn.Embedding(9, 5), *model.float()).requires_grad_(False)
    found = output_importance(embedded, ["1"], torch.arange(9)[:, None])
    assert (found["1"] > 0).any()


def test_a_layer_gradients_do_not_reach_is_left_out(model):
    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    assert importance(nn.Sequential(model[0], Cut(), model[1], model[2])) == {}


def test_the_model_keeps_its_hooks_and_gets_no_gradients(model):
    model[0].register_forward_hook(lambda module, args, output: None)
    importance(model, ["0", "2"])
    assert sum(len(m._forward_hooks) for m in model.modules()) == 1
    assert all(p.grad is None for p in model.parameters())
