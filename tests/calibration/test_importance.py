"""Importance of outputs against the Jacobian, and that the model is left as it was."""

import copy

import pytest
import torch
from torch import nn

from feta.calibration.importance import output_importance
from feta.calibration.model import fused_attention_off
from nets import traced

X = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MAPS = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mlp(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, outputs)).double().eval()


@pytest.fixture
def model():
    return mlp()


def importance(model: nn.Module, names=("0",), x=X, batches=None, **options) -> dict[str, torch.Tensor]:
    batches = [x] if batches is None else batches
    layers = traced(model, batches[0])
    return output_importance(model, [layers[name] for name in names], batches, **options)


def test_it_is_the_jacobians_size_where_the_output_is_active(model):
    """To the noise of random signs."""
    found = importance(model, probes=3000)["0"]
    z = model[0](X)
    active = (z > 0).double()
    squares = model[2].weight.square().sum(0) * active  # (samples, outputs): d logit / d z is 0 where inactive
    expected = (squares.sum(0) / active.sum(0).clamp_min(1)).sqrt()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01)


def test_with_one_logit_signs_do_not_matter():
    """One logit has one gradient, whatever its sign: this is exact."""
    model = mlp(1)
    found = importance(model, probes=1)["0"]
    torch.testing.assert_close(found, model[2].weight[0].abs().detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(importance(model, seed=1)["0"], found, rtol=1e-6, atol=0)


def test_outputs_nothing_reads_do_not_matter(model):
    with torch.no_grad():
        model[2].weight[:, 2] = 0
    found = importance(model)["0"]
    assert found[2] == 0
    assert (found[[0, 1, 3, 4, 5]] > 0).all()


def test_outputs_that_are_never_active_get_the_mean_of_the_others(model):
    with torch.no_grad():
        model[0].bias[[1, 4]] = -100
    found = importance(model)["0"]
    others = found[[0, 2, 3, 5]]
    assert (others > 0).all()
    torch.testing.assert_close(found[[1, 4]], others.mean().expand(2))


def test_convolutions_are_weighed_per_channel():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval()
    assert importance(model, x=torch.randn(5, 1, 4, 4))["0"].shape == (4,)


@pytest.mark.parametrize("size", [1, 7, 29])
def test_batches_do_not_matter(size):
    """One logit: no noise. Batches of one equal all samples at once."""
    model, whole = mlp(1), importance(mlp(1))
    expected = importance(model)["0"]
    found = importance(model, batches=X.split(size))["0"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert whole["0"].shape == expected.shape


def test_the_order_of_the_data_does_not_matter():
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)).double().eval()
    ordered = X[X[:, 0].argsort()]
    shuffled = X[torch.randperm(30)]
    one, other = (importance(model, ("0", "2"), batches=data.split(4)) for data in (ordered, shuffled))
    for name in ("0", "2"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=0)


def test_batches_and_many_logits_agree_to_the_noise_of_signs(model):
    whole, ones = importance(model, probes=2000)["0"], importance(model, batches=X.split(1), probes=200)["0"]
    torch.testing.assert_close(ones, whole, rtol=0.06, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_agrees_with_float32_to_its_own_precision(dtype):
    """The same weights; what is left is the rounding of values and gradients, some of them at the ReLU's edge."""
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 1))
    half = copy.deepcopy(model).to(dtype)
    model.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    data = torch.randn(2000, 5).to(dtype)
    single = importance(model, ("0", "2"), x=data.float(), probes=1)
    found = importance(half, ("0", "2"), x=data, probes=1)
    for name in ("0", "2"):
        assert bool(torch.isfinite(found[name]).all())
        torch.testing.assert_close(found[name].float(), single[name].float(), rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_sums_over_many_positions_do_not_overflow_in_half_precision():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 64 * 64, 1))
    with torch.no_grad():
        model[3].weight.fill_(30.0)
        model[0].bias.fill_(1.0)
    model, data = model.bfloat16(), torch.rand(40, 1, 64, 64) / 100
    found = importance(model, x=data.bfloat16())["0"]
    torch.testing.assert_close(found.float(), torch.full((2,), 30.0), rtol=0.01, atol=0)


class Residual(nn.Module):
    """A convolution with its batch-norm and its shortcut, which may be a convolution too."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.stem, self.conv, self.down = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.bn, self.other, self.fc = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.Linear(75, 1)
        for norm in (self.bn, self.other):
            nn.init.normal_(norm.weight, 1.0)
            nn.init.normal_(norm.bias)
        self._forward = forward

    def forward(self, x):
        return self.head(self._forward(self, torch.relu(self.stem(x))))

    def head(self, z):
        return self.fc(torch.relu_(z).flatten(1))


def in_place(m, x):
    y = m.bn(m.conv(x))
    y += x
    return y


SUMS = {"y += x": in_place, "x + y": lambda m, x: x + m.bn(m.conv(x)), "y + x": lambda m, x: m.bn(m.conv(x)) + x}


def at_the_sum(model: Residual) -> torch.Tensor:
    """By definition, at what the ReLU behind the sum reads."""
    z = model._forward(model, torch.relu(model.stem(MAPS))).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.head(z.clone()).sum(), z)
    return (gradient.square().sum((0, 2, 3)) / (z > 0).sum((0, 2, 3))).sqrt()


@pytest.mark.parametrize("forward", list(SUMS.values()), ids=list(SUMS))
def test_it_is_taken_behind_the_norm_and_the_shortcut(forward):
    model = Residual(forward).double().eval()
    found = importance(model, ["conv"], x=MAPS)["conv"]
    torch.testing.assert_close(found, at_the_sum(model), rtol=1e-6, atol=0)


def test_of_two_layers_that_meet_in_a_sum():
    model = Residual(lambda m, x: m.bn(m.conv(x)) + m.other(m.down(x))).double().eval()
    found = importance(model, ["conv", "down"], x=MAPS)
    for name in ("conv", "down"):
        torch.testing.assert_close(found[name], at_the_sum(model), rtol=1e-6, atol=0)


def test_a_network_that_adds_to_what_its_layers_have_read():
    """It cannot be trained as it is, but it runs, and what it computes has a gradient."""

    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 5)

        def forward(self, x):
            x += torch.relu(self.a(x))
            return x

    model = nn.Sequential(nn.Linear(5, 5), Adds(), Adds(), nn.Linear(5, 1)).double().eval()
    assert set(importance(model, ["1.a", "2.a"])) == {"1.a", "2.a"}


def test_attention_is_weighed_too():
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()
    names = ["self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"]
    with fused_attention_off():
        found = importance(layer, names, x=torch.randn(4, 3, 6))
    assert set(found) - {"self_attn.in_proj"} == set(names[1:])
    assert [len(found[name]) for name in names[1:]] == [6, 8, 6]


def test_the_seed_decides(model):
    first, second, third = (importance(model, seed=seed)["0"] for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_frozen_model_with_whole_number_inputs(model):
    embedded = nn.Sequential(nn.Embedding(9, 5), *model.float()).requires_grad_(False)
    found = importance(embedded, ["1"], x=torch.arange(9)[:, None])
    assert (found["1"] > 0).any()


def test_a_layer_gradients_do_not_reach_is_left_out(model):
    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    assert importance(nn.Sequential(model[0], Cut(), model[1], model[2])) == {}


def test_the_model_keeps_its_hooks_and_gets_no_gradients(model):
    model[0].register_forward_hook(lambda module, args, output: None)
    importance(model, ["0", "2"])
    assert sum(len(m._forward_hooks) for m in model.modules()) == 1
    assert all(p.grad is None for p in model.parameters())


def test_the_data_is_not_changed():
    data = X.clone()
    importance(nn.Sequential(nn.ReLU(inplace=True), *mlp()), ["1"], x=data)
    assert torch.equal(data, X)
