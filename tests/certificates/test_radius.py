"""Radii: the global one against its equation, a linear border and attack; what the search returns."""

import math

import pytest
import torch
from torch import nn

from feta.certificates.attack import Attack
from feta.certificates.chain import chain_of
from feta.certificates.radius import global_radius, largest_radius
from feta.certificates.rounding import Rounding
from feta.errors import ModelError


def dense(*after: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    hidden = nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(7, 4), *after)


def ends_in_relu() -> nn.Sequential:
    model = dense(nn.ReLU())
    model[4].bias.data += 2  # most scores are positive
    return model


def samples(model: nn.Module, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 12, generator=torch.Generator().manual_seed(1))
    return x, model(x).argmax(1)


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
    model = dense()
    x, classes = samples(model, 20)
    found = global_radius(chain_of(model, x), x, classes, Rounding.of(model))
    for row, radius in zip(x, found.tolist(), strict=True):
        exact = slow_radius(model, row)
        assert 0.999 * exact - 1e-5 <= radius < exact, (exact, radius)


@pytest.mark.parametrize(
    ("make", "norm", "beyond", "share"),
    [
        (lambda: nn.Sequential(nn.Linear(12, 4)), "l2", 1.05, 0.9),  # a linear network: the border itself
        (dense, "l2", 30, 0.8),
        (dense, "linf", 30, 0.8),
        (ends_in_relu, "l2", 30, 0.8),
    ],
)
def test_attack_inside_finds_nothing_and_outside_much(make, norm, beyond, share):
    model = make()
    x, classes = samples(model, 40)
    radius = global_radius(chain_of(model, x), x, classes, Rounding.of(model), norm)
    some = radius > 0
    assert some.sum() >= 35
    attack = Attack(points=20, restarts=2)
    assert not attack.changed([model], x[some], classes[some], radius[some], norm).any()
    assert attack.changed([model], x[some], classes[some], beyond * radius[some], norm).double().mean() >= share


def test_a_class_that_is_not_the_largest_gets_nothing():
    model = dense()
    x, _ = samples(model, 10)
    second = model(x).topk(2).indices[:, 1]
    assert global_radius(chain_of(model, x), x, second).tolist() == [0] * 10


def test_refusals():
    model, x = nn.Sequential(nn.Linear(3, 1)), torch.ones(2, 3)
    with pytest.raises(ModelError, match=r"two or more class scores, got \(1,\)"):
        global_radius(chain_of(model, x), x, torch.zeros(2, dtype=torch.int64))


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
