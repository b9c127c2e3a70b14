"""Rounding boxes: float32 runs stay within them, batch-norm run apart included."""

import pytest
import torch
from torch import nn

from feta.certificates.chain import chain_of
from feta.certificates.rounding import UNIT, Rounding, check_precision
from feta.certificates.stages import Affine, AvgPool
from feta.errors import ModelError

LAYERS = [
    (nn.Linear(500, 40), (500,)),
    (nn.Conv2d(16, 8, 5, padding=2), (16, 9, 9)),
    (nn.Sequential(nn.AvgPool2d(3, stride=2, padding=1), nn.Conv2d(4, 4, 1)), (4, 9, 9)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=["dense", "conv", "mean"])
def test_a_float32_run_is_off_by_less_than_half_the_box(layer, shape):
    """Half: the other half pays for the certificate's own arithmetic."""
    model = nn.Sequential(layer).eval()
    x = 100 * torch.randn(50, *shape, generator=torch.Generator().manual_seed(0))
    stage = chain_of(model, x).stages[0]
    assert isinstance(stage, Affine | AvgPool)
    first = layer[0] if isinstance(stage, AvgPool) else layer
    off = (first(x).double() - stage.apply(x.double())).abs()
    box = Rounding.of(model).box(stage, x.double().abs())
    assert off.max() > 0
    assert (off <= box / 2).all()


def test_the_box_by_hand():
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, -4.0]]))
        layer.bias.fill_(-2.0)
    stage = chain_of(nn.Sequential(layer), torch.ones(2, 2)).stages[0]
    box = Rounding().box(stage, torch.tensor([[1.0, 10.0]], dtype=torch.float64))
    # |W| |a| + |b| = 3 + 40 + 2, over two products, the bias and one operation to spare
    assert box.item() == pytest.approx(2 * 4 * UNIT / (1 - 4 * UNIT) * 45)


def test_batch_norm_that_cancels_is_covered():
    """The folded bias is nearly zero, the numbers that made it are not."""
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)).eval()
    with torch.no_grad():
        model[0].bias.fill_(3000.0)
        model[1].running_mean.fill_(3000.0)
    x = torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    stage = chain_of(model, x).stages[0]
    off = (model(x).double() - stage.apply(x.double())).abs()
    assert (off > Rounding().box(stage, x.double().abs()) / 2).any()
    assert (off <= Rounding.of(model).box(stage, x.double().abs()) / 2).all()


def test_half_precision_is_refused():
    with pytest.raises(ModelError, match=r"must get float32 networks, got '0.weight' in torch.bfloat16"):
        check_precision(nn.Sequential(nn.Linear(2, 2).to(torch.bfloat16)), torch.ones(1, 2))
