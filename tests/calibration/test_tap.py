"""Calls of layers out of a running network: what is caught, that nothing changes it later, when the pass ends."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from feta.calibration.model import evaluating
from feta.calibration.tap import Caught, Tap
from nets import traced

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))


class Two(nn.Module):
    """Two layers of equal width and a forward pass that is given as a function of them."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def run(model: nn.Module, x: torch.Tensor, *names: str, outputs=True, shortcuts=True) -> dict[str, list[Caught]]:
    traces = traced(model, x)
    tap = Tap(model, [traces[name] for name in names])
    with evaluating(model):
        return tap.run(lambda: model(x.clone()), outputs=outputs, shortcuts=shortcuts)


def test_a_tap_gives_input_and_output_and_stops_there():
    def forward(m, x):
        y = torch.relu_(m.a(x))
        z = m.b(y)
        if m.stops:
            raise AssertionError("the pass must end at the layer that was asked for")
        return z

    model = Two(forward)
    model.stops = False
    tap = Tap(model, [traced(model, X)["b"]])
    model.stops = True
    (call,) = tap.run(lambda: model(X), outputs=True, shortcuts=False)["b"]
    torch.testing.assert_close(call.x, torch.relu(model.a(X)))
    assert torch.equal(call.z, model.b(call.x))
    (alone,) = tap.run(lambda: model(X), outputs=False, shortcuts=False)["b"]
    assert torch.equal(alone.x, call.x)
    assert alone.z is None
    assert not call.x.requires_grad
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_inputs_alone_do_not_run_the_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    tap, expected = Tap(model, [traced(model, X)["2"]]), model[:2](X)
    model[2].bias = nn.Parameter(torch.zeros(7))  # the product could not be formed
    (call,) = tap.run(lambda: model(X), outputs=False, shortcuts=False)["2"]
    torch.testing.assert_close(call.x, expected)
    with pytest.raises(RuntimeError):
        tap.run(lambda: model(X), outputs=True, shortcuts=False)


def test_the_models_own_error_is_not_hidden():
    model = Two(lambda m, x: m.b(m.a(x)))
    tap = Tap(model, [traced(model, X)["b"]])
    model._forward = lambda m, x: m.a(x) @ torch.ones(3)
    with pytest.raises(RuntimeError):
        tap.run(lambda: model(X), outputs=True, shortcuts=False)


def test_a_layer_called_twice_is_safe_from_functions_in_place():
    model = Two(lambda m, x: m.b(m.a(x).mul_(2).add_(1)))
    model.b = model.a
    first, second = run(model, X, "a")["a"]
    assert torch.equal(first.x, X)
    torch.testing.assert_close(second.x, 2 * model.a(X) + 1)
    torch.testing.assert_close(first.z, model.a(X))
    torch.testing.assert_close(second.z, model.a(second.x))
    alone = run(model, X, "a", outputs=False)["a"]
    assert all(torch.equal(one.x, both.x) for one, both in zip(alone, (first, second), strict=True))


def test_a_layers_input_is_safe_from_functions_in_place():
    model = Two(lambda m, x: (m.a(x), x.zero_(), m.a(x)))
    first, _ = run(model, X, "a")["a"]
    assert torch.equal(first.x, X)


def test_a_layer_called_by_keyword_keeps_the_users_hooks():
    model, seen = Two(lambda m, x: m.b(input=m.a(input=x))), []
    model.a.register_forward_hook(lambda module, args, output: seen.append(1))
    (call,) = run(model, X, "b")["b"]
    assert sum(len(m._forward_hooks) for m in model.modules()) == 1
    assert len(seen) == 2  # traced once, tapped once
    torch.testing.assert_close(call.x, model.a(X))
    torch.testing.assert_close(call.z, model.b(call.x))


def test_layers_with_one_input_are_caught_in_one_pass_and_share_its_copy():
    model = Two(lambda m, x: torch.relu(m.a(x)) + m.b(x))
    found = run(model, X, "a", "b", outputs=False)
    assert found["a"][0].x is not X
    assert all(torch.equal(found[name][0].x, X) for name in "ab")
    both = run(model, X, "a", "b")
    torch.testing.assert_close(both["a"][0].z, model.a(X))
    torch.testing.assert_close(both["b"][0].z, model.b(X))


class Residual(nn.Module):
    def __init__(self, forward) -> None:
        super().__init__()
        self.stem, self.conv, self.down = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
        self.bn, self.other = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        for norm in (self.bn, self.other):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, torch.relu(self.stem(x)))


def y_plus_equals(m, x):
    y = m.bn(m.conv(x))
    y += x
    return F.relu_(y)


def x_plus_equals(m, x):
    x += m.bn(m.conv(x))
    return F.relu_(x)


SUMS = {
    "y += x": y_plus_equals,
    "x += y": x_plus_equals,
    "x + y": lambda m, x: F.relu_(x + m.bn(m.conv(x))),
    "y + x": lambda m, x: F.relu_(m.bn(m.conv(x)) + x),
    "torch.add": lambda m, x: F.relu_(torch.add(m.bn(m.conv(x)), x)),
    "no norm": lambda m, x: F.relu_(m.conv(x) + x),
    "dropout": lambda m, x: F.relu_(F.dropout(m.bn(m.conv(x)), 0.5, m.training) + x),
}


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("forward", list(SUMS.values()), ids=list(SUMS))
def test_what_is_added_behind_a_layer(forward, outputs):
    model = Residual(forward).eval()
    (call,) = run(model, MAPS, "conv", outputs=outputs)["conv"]
    with torch.no_grad():
        x = torch.relu(model.stem(MAPS))
        torch.testing.assert_close(call.x, x, rtol=0, atol=0)
        torch.testing.assert_close(call.shortcut, x, rtol=0, atol=0)
        if outputs:
            torch.testing.assert_close(call.z, model.conv(x), rtol=0, atol=0)


@pytest.mark.parametrize("order", ["conv first", "down first"])
def test_two_layers_that_meet_in_one_sum(order):
    """A block whose shortcut is a convolution too: each is what is added to the other."""

    def forward(m, x):
        if order == "conv first":
            y = m.bn(m.conv(x))
            return F.relu(y + m.other(m.down(x)))
        y = m.other(m.down(x))
        return F.relu(m.bn(m.conv(x)) + y)

    model = Residual(forward).eval()
    with torch.no_grad():
        x = torch.relu(model.stem(MAPS))
        behind = {"conv": model.bn(model.conv(x)), "down": model.other(model.down(x))}
    both = run(model, MAPS, "conv", "down")
    for name, other in (("conv", "down"), ("down", "conv")):
        torch.testing.assert_close(both[name][0].shortcut, behind[other])
        torch.testing.assert_close(run(model, MAPS, name)[name][0].shortcut, behind[other])


def test_shortcuts_are_left_alone_where_they_are_not_asked_for():
    model = Residual(SUMS["x + y"]).eval()
    (call,) = run(model, MAPS, "conv", shortcuts=False)["conv"]
    assert call.shortcut is None
