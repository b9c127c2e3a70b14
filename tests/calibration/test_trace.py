"""What a forward pass shows: order, consumers, rows; and that the model is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from feta.calibration.model import evaluating
from feta.calibration.recording import record
from feta.calibration.trace import Follow, trace_layers, untraced
from feta.errors import DataError
from feta.problem import Activation
from nets import traced


def activations(model: nn.Module, x: torch.Tensor) -> dict[str, str]:
    return {name: str(found.activation) for name, found in traced(model, x).items()}


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


SMOOTH = [nn.GELU(), nn.SiLU(True), nn.ReLU6(), nn.ReLU6(True), nn.Hardswish(True), nn.LeakyReLU(), nn.LeakyReLU(0.2)]
NAMED = ["gelu", "silu", "relu6", "relu6", "hardswish", "leaky_relu", "linear"]


@pytest.mark.parametrize(("between", "expected"), list(zip(SMOOTH, NAMED, strict=True)), ids=repr)
def test_what_smooth_module_follows_a_layer(between, expected):
    assert traced(Two(lambda m, x: m.b(m.between(m.a(x))), between), X)["a"].follow.activation == expected


def test_the_order_is_that_of_execution():
    assert list(traced(Two(lambda m, x: m.a(torch.relu(m.b(x)))), X)) == ["b", "a"]


def test_branches_and_residual_blocks():
    def forward(m, x):
        left = torch.relu(m.b(x))
        return left + m.a(left) + x

    assert activations(Two(forward), X) == {"b": "relu", "a": "linear"}


def test_a_shared_layer_is_one_layer_called_twice():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(4, 2))
    first, last = traced(model, X).values()
    assert (first.name, first.calls, str(first.activation)) == ("0", 2, "relu")
    assert (last.name, last.calls) == ("4", 1)
    sometimes = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 2))
    assert activations(sometimes, X)["0"] == "linear"


def test_convolutions():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2, 2))
    assert activations(model, torch.randn(3, 1, 4, 4)) == {"0": "relu", "2": "linear", "4": "linear"}


def test_layers_that_do_not_run_are_left_out():
    assert list(traced(Two(lambda m, x: m.b(x)), X)) == ["b"]


def test_a_model_that_cannot_be_run_has_all_its_layers_in_the_order_of_definition():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Linear(4, 4), nn.Linear(4, 2))
    found = untraced(model)
    assert [(one.name, one.reads_input, one.leaves) for one in found] == [
        ("0", True, False), ("1", False, False), ("2", False, True),
    ]  # fmt: skip
    assert found[0].operator.groups == 2
    assert {one.activation for one in found} == {Activation.LINEAR}


def test_tracing_leaves_the_model_and_the_users_hooks_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].eval()
    calls = []
    model[0].register_forward_hook(lambda module, args, output: calls.append("hook"))
    model[0].register_forward_pre_hook(lambda module, args: calls.append("pre"))
    modes = [m.training for m in model.modules()]
    traced(model, X)
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
    with pytest.raises(
        DataError,
        match=r"samples of \(4,\) torch.float32, on which the model fails: ValueError: the model's own error",
    ):
        traced(model, X)
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


def test_rows_and_entries_are_those_of_one_sample():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(4, 5))
    conv, linear = traced(model, torch.randn(3, 1, 4, 4)).values()
    assert (conv.rows, conv.entries, conv.shape) == (4, 16 + 8, (1, 4, 4))
    assert (linear.rows, linear.entries, linear.shape) == (2, 8 + 10, (2, 4))
    shared = nn.Linear(4, 4)
    (twice,) = traced(nn.Sequential(shared, shared), X).values()
    assert (twice.rows, twice.entries) == (2, 16)


def test_places_are_the_modules_around_each_call():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    found = traced(model, X)
    assert [one.places for one in found.values()] == [(("", "0", "0.0"),), (("", "1"),)]


# What comes before and behind


class Block(nn.Module):
    """Convolutions and batch-norms, called as a function of them says."""

    def __init__(self, forward, flat: bool = False) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.bn, self.flat = nn.BatchNorm2d(2), nn.BatchNorm1d(32)
        self.fc = nn.Linear(32, 3)
        self._forward = forward

    def forward(self, x):
        return self.fc(self._forward(self, x).flatten(1))


def in_place_sum(m, x):
    x = m.stem(x)
    y = m.bn(m.conv(x))
    y += x
    return F.relu_(y)


def in_place_sum_of_the_shortcut(m, x):
    x = m.stem(x)
    x += m.bn(m.conv(x))
    return F.relu(x, inplace=True)


def read_between(m, x):
    y = m.bn(z := m.conv(m.stem(x)))
    return torch.relu(y) * z.mean()


def norm_read_twice(m, x):
    y = m.bn(m.conv(m.stem(x)))
    return torch.relu(y) + y.mean()


def twice(m, x):
    return m.bn(m.conv(m.bn(m.stem(x))))


BEHIND = {
    "relu": (lambda m, x: F.relu(m.conv(m.stem(x))), Follow(None, False, Activation.RELU)),
    "bn": (lambda m, x: m.bn(m.conv(m.stem(x))), Follow("bn")),
    "bn, relu": (lambda m, x: F.relu(m.bn(m.conv(m.stem(x)))), Follow("bn", False, Activation.RELU)),
    "bn, relu_": (lambda m, x: F.relu_(m.bn(m.conv(m.stem(x)))), Follow("bn", False, Activation.RELU)),
    "bn, tanh": (lambda m, x: torch.tanh(m.bn(m.conv(m.stem(x)))), Follow("bn")),
    "y += x, relu_": (in_place_sum, Follow("bn", True, Activation.RELU)),
    "x += y, relu_": (in_place_sum_of_the_shortcut, Follow("bn", True, Activation.RELU)),
    "x + y, relu": (lambda m, x: F.relu((s := m.stem(x)) + m.bn(m.conv(s))), Follow("bn", True, Activation.RELU)),
    "y + x, relu": (lambda m, x: F.relu(m.bn(m.conv(s := m.stem(x))) + s), Follow("bn", True, Activation.RELU)),
    "torch.add, relu": (
        lambda m, x: torch.relu_(torch.add(s := m.stem(x), m.bn(m.conv(s)))),
        Follow("bn", True, Activation.RELU),
    ),
    "without bn": (lambda m, x: F.relu(m.conv(s := m.stem(x)) + s), Follow(None, True, Activation.RELU)),
    "sum, nothing": (lambda m, x: m.bn(m.conv(s := m.stem(x))) + s, Follow("bn", True)),
    "bn twice": (twice, Follow()),
    "bn of the flat map": (lambda m, x: torch.relu(m.flat(m.conv(m.stem(x)).flatten(1))), Follow()),
    "alpha": (lambda m, x: F.relu(torch.add(m.conv(s := m.stem(x)), s, alpha=2)), Follow()),
    "a number": (lambda m, x: F.relu(m.conv(m.stem(x)) + 1), Follow()),
    "a vector": (lambda m, x: F.relu(m.conv(m.stem(x)) + torch.ones(1, 2, 1, 1)), Follow()),
    "to itself": (lambda m, x: F.relu((y := m.conv(m.stem(x))) + y), Follow()),
    "read between": (read_between, Follow()),
    "norm read twice": (norm_read_twice, Follow("bn")),
}


@pytest.mark.parametrize(("forward", "expected"), list(BEHIND.values()), ids=list(BEHIND))
def test_norm_shortcut_and_activation_behind_a_convolution(forward, expected):
    assert traced(Block(forward), torch.randn(2, 2, 4, 4))["conv"].follow == expected


def test_a_norm_without_statistics_or_shift_is_not_folded():
    for norm in (nn.BatchNorm2d(2, track_running_stats=False), nn.BatchNorm2d(2, affine=False)):
        model = Block(lambda m, x: m.bn(m.conv(m.stem(x))))
        model.bn = norm
        assert traced(model, torch.randn(2, 2, 4, 4))["conv"].follow == Follow()


def test_a_norm_behind_a_linear_layer():
    for x, norm in ((X, "1"), (torch.randn(2, 3, 4), None)):  # of (N, L, C) the second dimension is normed
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(x.shape[1]), nn.ReLU())
        assert traced(model, x)["0"].follow.norm == norm


def test_a_layer_that_runs_twice_has_nothing_folded():
    model = Block(lambda m, x: F.relu(m.bn(m.conv(m.conv(x)))))
    assert traced(model, torch.randn(2, 2, 4, 4))["conv"].follow == Follow()


def test_layers_that_read_the_models_input():
    def forward(m, x):
        normed = (x - x.mean()) / 2
        return m.b(torch.relu(m.a(normed.clone())))

    found = traced(Two(forward), X)
    assert [one.reads_input for one in found.values()] == [True, False]
    patches = Block(lambda m, x: m.conv(F.pad(F.relu(x), (1, 1, 1, 1))[..., 1:-1, 1:-1]))
    found = traced(patches, torch.randn(2, 2, 4, 4))
    assert [one.reads_input for one in found.values()] == [True, False]
    normed = Two(lambda m, x: m.b(m.a(m.between(x))), nn.LayerNorm(4))
    assert not any(one.reads_input for one in traced(normed, X).values())


LEAVES = {
    "plain": (lambda m, x: m.b(torch.relu(m.a(x))), {"b"}),
    "softmax": (lambda m, x: m.b(m.a(x)).softmax(1), {"b"}),
    "log softmax in a dict": (lambda m, x: {"logits": F.log_softmax(m.b(m.a(x)), 1).squeeze(-1)}, {"b"}),
    "the last position": (lambda m, x: m.b(m.a(x))[:, -1], {"b"}),
    "another shape": (
        lambda m, x: m.b(m.a(x)).unflatten(-1, (2, 2)).permute(0, 2, 1).unsqueeze(1).transpose(2, 3),
        {"b"},
    ),
    "boxes and scores": (lambda m, x: m.b(m.a(x)).tanh().split(2, -1), {"b"}),
    "one for each sample": (lambda m, x: [{"boxes": box} for box in m.b(m.a(x))], {"b"}),
    "as large as the input": (lambda m, x: F.interpolate(m.b(m.a(x))[:, None], scale_factor=2.0), {"b"}),
    "two heads": (lambda m, x: (m.a(x), m.b(x).sigmoid()), {"a", "b"}),
    "output and input of another": (lambda m, x: (y := m.a(x), m.b(y)), {"b"}),
    "shortcut": (lambda m, x: (y := torch.relu(m.a(x))) + m.b(y), set()),
    "relu": (lambda m, x: torch.relu(m.b(m.a(x))), set()),
}


@pytest.mark.parametrize(("forward", "expected"), list(LEAVES.values()), ids=list(LEAVES))
def test_layers_whose_outputs_are_the_models(forward, expected):
    assert {name for name, one in traced(Two(forward), X).items() if one.leaves} == expected


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return x + self.o(F.scaled_dot_product_attention(q, k, v))


def test_layers_with_one_input_have_one_source():
    found = traced(nn.Sequential(nn.LayerNorm(4), Attention()), torch.randn(2, 3, 4))
    sources = [one.source for one in found.values()]
    assert list(found) == ["1.q", "1.k", "1.v", "1.o"]
    assert sources[0] == sources[1] == sources[2] != sources[3]
    changed = Two(lambda m, x: (m.a(x), m.b(x.mul_(2))))  # the same tensor, with other values
    assert len({one.source for one in traced(changed, X).values()}) == 2


def test_the_data_is_not_changed_by_a_model_that_works_in_place():
    x = X.clone()
    traced(Two(lambda m, x: m.b(m.a(x.mul_(2)))), x)
    assert torch.equal(x, X)


def test_weights_of_other_types_are_seen_in_their_own():
    recording = record(nn.Sequential(nn.Linear(4, 4)).double(), X)  # the batch is cast to the model's type
    assert recording.samples == 3
    assert [one.name for one in trace_layers(recording)] == ["0"]
