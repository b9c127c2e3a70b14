"""Batch-norm statistics over the calibration data, and nothing else changed."""

import pytest
import torch
from torch import nn

from feta.calibration.batchnorm import reestimate, statistics_of
from feta.calibration.inputs import Inputs
from feta.calibration.model import evaluating


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).eval()


X = 3 + 2 * torch.randn(41, 3, generator=torch.Generator().manual_seed(1))


def run(model: nn.Module, x: torch.Tensor, batch_size: int) -> int:
    with evaluating(model):
        return reestimate(model, Inputs(x, batch_size=batch_size))


def test_one_batch_gives_its_own_mean_and_variance(model):
    assert run(model, X, 100) == 1
    z = model[0](X).double()
    torch.testing.assert_close(model[1].running_mean.double(), z.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[1].running_var.double(), z.var(0), rtol=1e-5, atol=1e-6)


def test_batches_are_averaged_whatever_the_momentum(model):
    model[1].momentum = 0.01
    run(model, X[:40], 10)
    means = torch.stack([model[0](part).mean(0) for part in X[:40].split(10)])
    torch.testing.assert_close(model[1].running_mean, means.mean(0))
    assert model[1].momentum == 0.01


def test_a_left_over_batch_of_one_sample_is_passed_over(model):
    run(model, X, 10)  # 41 rows
    alone = model[1].running_mean.clone()
    run(model, X[:40], 10)
    assert torch.equal(model[1].running_mean, alone)


def test_images_one_by_one_do_count():
    model = nn.Sequential(nn.BatchNorm2d(2)).eval()
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    run(model, x, 1)
    torch.testing.assert_close(model[0].running_mean, x.mean((0, 2, 3)))


def test_modes_weights_and_momentum_stay(model):
    weights = {k: v.clone() for k, v in model.state_dict().items() if "running" not in k and "tracked" not in k}
    model[2].train()
    run(model, X, 10)
    assert [m.training for m in model] == [False, False, True, False, False]
    assert all(torch.equal(model.state_dict()[k], v) for k, v in weights.items())
    with pytest.raises(RuntimeError):
        run(model, torch.randn(5, 7), 10)
    assert not model[1].training
    assert model[1].momentum == 0.1


def test_nothing_to_do_without_statistics():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    assert run(model, X, 10) == 0


def test_statistics_can_be_put_back(model):
    """Buffers with copies of what is in them, the number of batches included; norms without any have none."""
    kept = statistics_of(model)
    assert len(kept) == 3
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    run(model, X, 10)
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    for buffer, copied in kept:
        buffer.copy_(copied)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert statistics_of(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False))) == []
