"""The attack finds what is there: on a linear network the distance to the border is known."""

import pytest
import torch
from torch import nn

from feta.certificates.attack import Attack, slopes
from feta.errors import ConfigError

X = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))


def linear() -> nn.Linear:
    layer = nn.Linear(30, 4)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
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
    layer = linear()
    classes = layer(X).argmax(1)
    distance = border(layer, X, classes, dual)
    attack = Attack(points=5, restarts=2, steps=30)
    assert not attack.changed([layer], X, classes, 0.99 * distance, norm).any()
    assert attack.changed([layer], X, classes, 1.05 * distance, norm).double().mean() >= 0.9


def test_a_change_of_either_network_counts():
    first, second = linear(), linear()
    second.weight.data[3] *= -1
    classes = first(X).argmax(1)
    x, classes = (values[second(X).argmax(1) == classes] for values in (X, classes))
    near = border(second, x, classes, 2)
    attack = Attack(points=2, restarts=1)
    alone = attack.changed([first], x, classes, 1.1 * near)
    both = attack.changed([first, second], x, classes, 1.1 * near)
    assert both.sum() > alone.sum()


def test_same_seed_same_answer_and_the_mode_is_kept():
    layer = linear().train()
    classes = layer(X).argmax(1)
    asked = [layer], X, classes, border(layer, X, classes, 2) * 1.02
    attack = Attack(points=3, restarts=1, steps=4)
    assert torch.equal(attack.changed(*asked), attack.changed(*asked))
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
