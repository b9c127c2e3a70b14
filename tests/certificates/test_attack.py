"""The attack finds what is there: on a linear network the distance to the border is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from feta.certificates.attack import Attack, slopes
from feta.errors import ConfigError


def linear(seed: int) -> nn.Linear:
    layer = nn.Linear(30, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(4, 30, generator=torch.Generator().manual_seed(seed)))
    return layer


def border(layer: nn.Linear, x: torch.Tensor, classes: torch.Tensor, order: int) -> torch.Tensor:
    """The nearest of the hyperplanes f_c = f_j."""
    scores = layer(x).detach().double()
    W = layer.weight.detach().double()
    lead = scores.gather(1, classes[:, None]) - scores
    dual = torch.linalg.vector_norm(W[classes][:, None] - W[None], ord=order, dim=2)
    return (lead / dual).scatter(1, classes[:, None], float("inf")).amin(1)


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1)])
def test_it_finds_a_change_just_outside_and_none_inside(norm, dual):
    layer = linear(0)
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    classes = layer(x).argmax(1)
    distance = border(layer, x, classes, dual)
    attack = Attack(points=5, restarts=2, steps=30)
    assert not attack.changed([layer], x, classes, 0.99 * distance, norm).any()
    assert attack.changed([layer], x, classes, 1.05 * distance, norm).double().mean() >= 0.9


def test_a_change_of_either_network_counts():
    first, second = linear(0), linear(0)
    with torch.no_grad():
        second.weight.mul_(torch.tensor([1.0, 1.0, 1.0, -1.0])[:, None])
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    classes = first(x).argmax(1)
    x, classes = (values[(second(x).argmax(1) == classes)] for values in (x, classes))
    near = border(second, x, classes, 2)
    attack = Attack(points=2, restarts=1)
    alone = attack.changed([first], x, classes, 1.1 * near)
    both = attack.changed([first, second], x, classes, 1.1 * near)
    assert both.sum() > alone.sum()


def test_same_seed_same_answer_and_the_mode_is_kept():
    layer = linear(3).train()
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(2))
    classes = layer(x).argmax(1)
    radius = border(layer, x, classes, 2) * 1.02
    attack = Attack(points=3, restarts=1, steps=4)
    assert torch.equal(attack.changed([layer], x, classes, radius), attack.changed([layer], x, classes, radius))
    assert layer.training


def test_margins():
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 7.0]])
    lead, gradient = slopes(nn.Identity(), scores, torch.tensor([0, 1]))
    assert lead.tolist() == [1, -2]
    assert gradient.tolist() == [[1, 0, -1], [0, 1, -1]]


@pytest.mark.parametrize("name", ["points", "restarts", "steps"])
def test_refusals(name):
    with pytest.raises(ConfigError, match=f"Attack.{name} must be >= 1, got 0"):
        Attack(**{name: 0})
