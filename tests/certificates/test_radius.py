"""Radii: the global one against its equation, a linear border and attack; what the search returns."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from feta.certificates.attack import Attack
from feta.certificates.chain import chain_of
from feta.certificates.radius import global_radius, largest_radius
from feta.certificates.rounding import Rounding
from feta.errors import ModelError


def dense(seed: int = 0, *widths: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = widths or (12, 9, 7, 4)
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.ReLU()] * (number > 0) + [nn.Linear(before, after)]
    return nn.Sequential(*layers)


def inputs(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_radius(model: nn.Sequential, x: torch.Tensor) -> float:
    """min_j (f_c - f_j) / (||w_c - w_j|| prod ||W_i||), word for word."""
    weights = [layer.weight.detach().double() for layer in model if isinstance(layer, nn.Linear)]
    gain = math.prod(float(torch.linalg.svdvals(W)[0]) for W in weights[:-1])
    scores = model.double()(x.double()[None])[0].tolist()
    model.float()
    c = max(range(len(scores)), key=scores.__getitem__)
    last = weights[-1]
    return min(
        (scores[c] - scores[j]) / (float((last[c] - last[j]).norm()) * gain) for j in range(len(scores)) if j != c
    )


def test_it_is_its_equation_less_rounding():
    model, x = dense(), inputs(20, 12)
    found = global_radius(chain_of(model, x), x, model(x).argmax(1), Rounding.of(model))
    for row, radius in zip(x, found.tolist(), strict=True):
        exact = slow_radius(model, row)
        assert 0.999 * exact - 1e-5 <= radius < exact, (exact, radius)


def test_of_a_linear_network_it_is_the_distance_to_the_border():
    model, x = dense(0, 12, 4), inputs(30, 12)
    classes = model(x).argmax(1)
    radius = global_radius(chain_of(model, x), x, classes)
    attack = Attack(points=5, restarts=2)
    assert not attack.changed([model], x, classes, radius).any()
    assert attack.changed([model], x, classes, 1.05 * radius).double().mean() > 0.9


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_attack_inside_finds_nothing_and_outside_much(norm):
    model, x = dense(), inputs(40, 12)
    classes = model(x).argmax(1)
    radius = global_radius(chain_of(model, x), x, classes, Rounding.of(model), norm)
    assert (radius > 0).sum() >= 35
    some = radius > 0
    attack = Attack(points=20, restarts=2, steps=20)
    assert not attack.changed([model], x[some], classes[some], radius[some], norm).any()
    assert attack.changed([model], x[some], classes[some], 30 * radius[some], norm).double().mean() > 0.8


def test_a_class_that_is_not_the_largest_gets_nothing():
    model, x = dense(), inputs(10, 12)
    second = model(x).topk(2).indices[:, 1]
    assert global_radius(chain_of(model, x), x, second).tolist() == [0] * 10


def test_a_network_that_ends_in_relu():
    model = nn.Sequential(*dense(), nn.ReLU())
    with torch.no_grad():
        model[4].bias.add_(2.0)
    x = inputs(20, 12)
    classes = model(x).argmax(1)
    radius = global_radius(chain_of(model, x), x, classes, Rounding.of(model))
    assert (radius > 0).any()
    assert not Attack(points=20).changed([model], x, classes, radius).any()


def test_refusals():
    one = nn.Sequential(nn.Linear(3, 1))
    with pytest.raises(ModelError, match=r"two or more class scores, got \(1,\)"):
        global_radius(chain_of(one, inputs(2, 3)), inputs(2, 3), torch.zeros(2, dtype=torch.int64))


# The search


def test_it_finds_every_end_from_afar():
    ends = torch.tensor([1e-3, 0.2, 1.0, 7.0], dtype=torch.float64)
    found = largest_radius(
        lambda rows, radius: radius <= ends[rows], torch.full_like(ends, 0.5), probes=30, tolerance=0.01
    )
    assert ((found <= ends) & (found >= ends / 1.011)).all()


def test_what_it_returns_was_accepted():
    """A test that is not monotone: between 1 and 2 it fails, above it accepts again."""
    accepted: set[float] = set()

    def test(rows, radius):
        ok = (radius < 1) | (radius > 2)
        accepted.update(radius[ok].tolist())
        return ok & (radius < 5)

    found = largest_radius(test, torch.tensor([0.7, 1.5, 3.0], dtype=torch.float64))
    assert set(found.tolist()) <= accepted


def test_no_guess_and_no_pass_are_zero():
    guess = torch.tensor([0.0, 1.0, float("nan"), float("inf")], dtype=torch.float64)
    asked: list[int] = []

    def test(rows, radius):
        asked.extend(rows.tolist())
        return torch.zeros(len(rows), dtype=torch.bool)

    assert largest_radius(test, guess, probes=5).tolist() == [0, 0, 0, 0]
    assert set(asked) == {1}
