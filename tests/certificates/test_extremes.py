"""Certificates where numbers end: overflow before a batch-norm, balls beyond float32, windows of unknown pixels."""

import copy

import pytest
import torch
from torch import nn

import feta
from feta.certificates.attack import Attack
from feta.certificates.chain import chain_of
from feta.certificates.relaxation import Relaxation, envelope
from feta.certificates.rounding import LARGEST, Rounding
from feta.certificates.stages import MaxPool


def normed(*layers: nn.Module) -> nn.Module:
    """A layer whose own outputs are huge, and a batch-norm that brings them back."""
    model = nn.Sequential(*layers, nn.BatchNorm1d(2)).eval()
    linear, norm = model[0], model[-1]
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1e20, 0.0], [0.0, 1e20]]))
        norm.running_var.fill_(1e38)
        norm.weight.fill_(1e-18)
        norm.bias.copy_(torch.tensor([100.0, 0.0]))
    return model


def finite_everywhere(model: nn.Module, x: torch.Tensor, radius: float) -> bool:
    """Scores along both axes of the ball."""
    steps = radius * (1 - 1e-6) * torch.linspace(-1, 1, 2001)
    points = torch.cat([x + steps[:, None] * axis for axis in torch.eye(2)])
    return bool(model(points).isfinite().all())


@torch.no_grad()
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_no_certified_ball_holds_an_overflow_before_a_batch_norm(norm):
    """Folded, nothing is large: the network as it is run gives inf - inf far outside."""
    model, x = normed(nn.Linear(2, 2, bias=False)), torch.tensor([[1e15, 0.0], [2e17, 1e17]])
    assert not finite_everywhere(model, x[:1], 1e19)  # such inputs are not far
    found = feta.certify(model, copy.deepcopy(model), x, norm=norm, attack=None)
    for form in found.forms.values():
        for sample, radius in zip(x, form.radius, strict=True):
            assert finite_everywhere(model, sample[None], radius)
    assert max(found.forms["local"].radius) > 0


def test_the_box_is_infinite_where_the_layer_itself_overflows():
    model = normed(nn.Linear(2, 2, bias=False))
    (stage,) = chain_of(model, torch.ones(2, 2)).stages
    box = Rounding.of(model).box
    assert box(stage, torch.full((1, 2), 1e17, dtype=torch.float64)).isfinite().all()
    assert box(stage, torch.full((1, 2), 2e18, dtype=torch.float64)).isinf().all()
    assert (stage.absolute.apply(torch.full((1, 2), 2e18, dtype=torch.float64)) < LARGEST / 2).all()  # folded


@torch.no_grad()
def test_a_factor_below_the_range_is_in_the_box():
    """The batch-norm's factor is no normal number of float32: its digits are gone, and what it meets is large."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)).eval()
    model[0].weight.fill_(1e30)
    model[1].running_var.fill_(1e38)
    model[1].weight.fill_(3e-25)
    x = torch.linspace(1, 100, 50)[:, None]
    (stage,) = chain_of(model, x).stages
    off = (model(x).double() - stage.apply(x.double())).abs()
    box = Rounding.of(model).box(stage, x.double())
    assert (off > 0).any()
    assert (off <= box).all()


@torch.no_grad()
def test_windows_are_added_up_before_they_are_divided():
    """Nine pixels of a ninth of the range and more: their mean is a number, and their sum is none."""
    model = nn.Sequential(nn.AvgPool2d(3), nn.Flatten(), nn.Linear(1, 2)).eval()
    model[2].weight.copy_(torch.tensor([[1e-38], [-1e-38]]))
    model[2].bias.copy_(torch.tensor([10.0, -10.0]))
    x = torch.zeros(2, 1, 3, 3)
    for norm, share in (("linf", 1.0), ("l2", 1 / 3)):
        found = feta.certify(model, copy.deepcopy(model), x, norm=norm, attack=None)
        for form in found.forms.values():
            edge = torch.full((1, 1, 3, 3), form.radius[0] * share)
            assert model(edge).isfinite().all()
    (stage, *_) = chain_of(model, x).stages
    box = Rounding.of(model).box
    assert box(stage, torch.full((1, 1, 3, 3), 1e37, dtype=torch.float64)).isfinite().all()
    assert box(stage, torch.full((1, 1, 3, 3), 1e38, dtype=torch.float64)).isinf().all()


@torch.no_grad()
def test_no_ball_is_larger_than_the_numbers():
    """A network that says the same everywhere says nothing of inputs that are infinite."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    model[0].weight.zero_()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    found = feta.certify(model, copy.deepcopy(model), x, attack=Attack(2, 1, 2, beyond=()))
    for form in found.forms.values():
        assert form.certified_but_changed == 0
        assert max(form.radius) <= LARGEST / 2
    chain = chain_of(model, x)
    huge = torch.full((8,), 1e39, dtype=torch.float64)
    assert not Relaxation(chain).certified(x, model(x).argmax(1), huge).any()


@torch.no_grad()
def test_a_sample_where_the_network_is_constant_spares_the_others():
    """Its slope is zero, so the search for its radius begins at the end of all numbers; the pool is padded."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(32, 3)
    ).eval()
    model[0].bias.fill_(-1.0)
    x = torch.randn(4, 1, 6, 6)
    x[0] = 0
    found = feta.certify(model, copy.deepcopy(model), x, attack=Attack(2, 1, 2, beyond=()))
    assert min(found.forms["local"].radius) > 0
    assert found.forms["local"].certified_but_changed == 0


def test_padding_is_never_picked():
    pool = nn.MaxPool2d(2, padding=1)
    stage = MaxPool("pool", (1, 2, 2), (1, 2, 2), pool)
    nothing = torch.full((1, 1, 2, 2), float("-inf"), dtype=torch.float64)
    rows = torch.ones(1, 1, 1, 2, 2, dtype=torch.float64)
    moved, _ = envelope(stage, nothing, torch.ones_like(nothing))(rows)
    assert torch.equal(moved, rows)
