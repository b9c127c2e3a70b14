"""What a forward pass shows: order, consumers, rows; and that the model is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from feta.calibration.capture import LayerTap, LayerTrace, trace_layers
from feta.calibration.model import evaluating
from feta.layers import prunable_names
from feta.problem import Activation


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def trace(model: nn.Module, x: torch.Tensor) -> list[LayerTrace]:
    return trace_layers(model, prunable_names(model), x)


def activations(model: nn.Module, x: torch.Tensor) -> dict[str, str]:
    return {found.name: str(found.activation) for found in trace(model, x)}


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class Two(nn.Module):
    """Two layers of equal width and a forward pass that is given as a function of them."""

    def __init__(self, forward, between: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

FOLLOWED = {
    "F.relu": (lambda m, x: m.b(F.relu(m.a(x))), "relu"),
    "F.relu in place": (lambda m, x: m.b(F.relu(m.a(x), inplace=True)), "relu"),
    "torch.relu": (lambda m, x: m.b(torch.relu(m.a(x))), "relu"),
    "torch.relu_": (lambda m, x: m.b(torch.relu_(m.a(x))), "relu"),
    "method": (lambda m, x: m.b(m.a(x).relu()), "relu"),
    "method in place": (lambda m, x: m.b(m.a(x).relu_()), "relu"),
    "two relus": (lambda m, x: m.b(torch.relu(y := m.a(x)) + torch.relu(y)), "relu"),
    "in place, then read twice": (lambda m, x: m.b(F.relu_(y := m.a(x)) + y), "relu"),
    "reshaped before": (lambda m, x: m.b(torch.relu(m.a(x).view(-1, 2, 2).flatten(1))), "relu"),
    "shape is no reading": (lambda m, x: m.b(torch.relu((y := m.a(x)).reshape(y.shape[0], y.size(1)))), "relu"),
    "tanh": (lambda m, x: m.b(torch.tanh(m.a(x))), "linear"),
    "gelu": (lambda m, x: m.b(F.gelu(m.a(x))), "linear"),
    "relu6": (lambda m, x: m.b(F.relu6(m.a(x))), "linear"),
    "leaky relu": (lambda m, x: m.b(F.leaky_relu(m.a(x))), "linear"),
    "nothing": (lambda m, x: m.b(m.a(x)), "linear"),
    "residual before the relu": (lambda m, x: m.b(torch.relu(m.a(x) + x)), "linear"),
    "residual before, in place": (lambda m, x: m.b(torch.relu(m.a(x).add_(x))), "linear"),
    "also read as it is": (lambda m, x: m.b(torch.relu(y := m.a(x)) + y), "linear"),
    "also read transposed": (lambda m, x: m.b(torch.relu(y := m.a(x)) + y.T.sum()), "linear"),
    "also read in a list": (lambda m, x: m.b(torch.cat([torch.relu(y := m.a(x)), y])[:3]), "linear"),
    "also returned": (lambda m, x: (m.b(torch.relu(y := m.a(x))), y), "linear"),
    "also returned in a dict": (lambda m, x: {"z": m.b(torch.relu(y := m.a(x))), "deep": [y]}, "linear"),
    "relu of another tensor": (lambda m, x: m.b(m.a(torch.relu(x))), "linear"),
}


@pytest.mark.parametrize(("forward", "expected"), list(FOLLOWED.values()), ids=list(FOLLOWED))
def test_what_follows_a_layer(forward, expected):
    assert activations(Two(forward), X)["a"] == expected


MODULES = {
    "relu": (nn.ReLU(), "relu"),
    "relu in place": (nn.ReLU(inplace=True), "relu"),
    "dropout, relu": (nn.Sequential(nn.Dropout(0.5), nn.ReLU()), "relu"),
    "dropout in place, relu in place": (nn.Sequential(nn.Dropout(0.5, True), nn.ReLU(True)), "relu"),
    "identity, relu": (nn.Sequential(nn.Identity(), nn.ReLU()), "relu"),
    "flatten, relu": (nn.Sequential(nn.Flatten(), nn.ReLU()), "relu"),
    "relu, dropout": (nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), "relu"),
    "batch norm": (nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), "linear"),
    "layer norm": (nn.Sequential(nn.LayerNorm(4), nn.ReLU()), "linear"),
    "tanh": (nn.Tanh(), "linear"),
    "gelu": (nn.GELU(), "linear"),
    "softmax": (nn.Softmax(dim=1), "linear"),
}


@pytest.mark.parametrize(("between", "expected"), list(MODULES.values()), ids=list(MODULES))
def test_what_module_follows_a_layer(between, expected):
    found = activations(Two(lambda m, x: m.b(m.between(m.a(x))), between), X)
    assert found == {"a": expected, "b": "linear"}


def test_the_order_is_that_of_execution():
    assert [found.name for found in trace(Two(lambda m, x: m.a(torch.relu(m.b(x)))), X)] == ["b", "a"]


def test_branches_and_residual_blocks():
    def forward(m, x):
        left = torch.relu(m.b(x))
        return left + m.a(left) + x

    assert activations(Two(forward), X) == {"b": "relu", "a": "linear"}


def test_a_shared_layer_is_one_layer_called_twice():
    shared = nn.Linear(4, 4)
    first, last = trace(nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(4, 2)), X)
    assert (first.name, first.calls, str(first.activation)) == ("0", 2, "relu")
    assert (last.name, last.calls) == ("4", 1)
    sometimes = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2))
    assert activations(sometimes, X)["0"] == "linear"


def test_convolutions():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2, 2))
    assert activations(model, torch.randn(3, 1, 4, 4)) == {"0": "relu", "2": "linear", "4": "linear"}


def test_layers_that_do_not_run_are_left_out():
    assert [found.name for found in trace(Two(lambda m, x: m.b(x)), X)] == ["b"]
    assert LayerTrace("fc").activation is Activation.LINEAR


def test_tracing_leaves_the_model_and_the_users_hooks_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].eval()
    calls = []
    model[0].register_forward_hook(lambda module, args, output: calls.append("hook"))
    model[0].register_forward_pre_hook(lambda module, args: calls.append("pre"))
    modes = [m.training for m in model.modules()]
    trace(model, X)
    assert hooks(model) == 2
    assert [m.training for m in model.modules()] == modes == [True, True, False, True]
    assert calls == ["pre", "hook"]
    model(X)
    assert calls == ["pre", "hook"] * 2


def failing(m: Two, x: torch.Tensor) -> torch.Tensor:
    m.a(x)
    raise ValueError("the model's own error")


def test_a_model_that_raises_is_left_as_it_was():
    model = Two(failing)
    tap = LayerTap(model, "b")
    for run in (lambda: trace(model, X), lambda: tap.run(X), lambda: tap.inputs(X)):
        with pytest.raises(ValueError, match="the model's own error"):
            run()
        assert hooks(model) == 0
        assert model.training


def test_evaluating_restores_each_module_also_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    modes = [m.training for m in model.modules()]
    with evaluating(model):
        assert not any(m.training for m in model.modules())
    assert [m.training for m in model.modules()] == modes
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert [m.training for m in model.modules()] == modes


def test_a_tap_gives_input_and_output_and_stops_there():
    def forward(m, x):
        y = torch.relu_(m.a(x))
        m.b(y)
        raise AssertionError("the pass must end at the layer that was asked for")

    model = Two(forward)
    ((x, z),) = LayerTap(model, "b").run(X)
    torch.testing.assert_close(x, torch.relu(model.a(X)))
    assert torch.equal(z, model.b(x))
    assert torch.equal(*LayerTap(model, "b").inputs(X), x)
    assert hooks(model) == 0
    assert not x.requires_grad


def test_a_tap_of_a_layer_called_twice_is_safe_from_functions_in_place():
    model = Two(lambda m, x: m.b(m.a(x).mul_(2).add_(1)))
    model.b = model.a
    (x0, z0), (x1, z1) = LayerTap(model, "a", calls=2).run(X)
    assert torch.equal(x0, X)
    torch.testing.assert_close(x1, 2 * model.a(X) + 1)
    torch.testing.assert_close(z0, model.a(X))
    torch.testing.assert_close(z1, model.a(x1))
    assert all(map(torch.equal, LayerTap(model, "a", calls=2).inputs(X), (x0, x1)))


def test_a_tap_is_safe_from_a_function_in_place_on_the_layers_input():
    model = Two(lambda m, x: (m.a(x), x.zero_(), m.a(x)))
    (first, _), _ = LayerTap(model, "a", calls=2).run(X)
    assert torch.equal(first, X)


def test_a_tap_of_a_layer_called_by_keyword_keeps_the_users_hooks():
    model, seen = Two(lambda m, x: m.b(input=m.a(input=x))), []
    model.a.register_forward_hook(lambda module, args, output: seen.append(1))
    ((x, z),) = LayerTap(model, "b").run(X)
    assert (hooks(model), seen) == (1, [1])
    torch.testing.assert_close(x, model.a(X))
    torch.testing.assert_close(z, model.b(x))
