"""Dead neurons are taken out, and the outputs stay."""

import copy

import pytest
import torch
from torch import nn

from feta.inference.dead_neurons import shrink
from feta.inference.example import observed

ACTIVATIONS = [nn.ReLU(), nn.Sigmoid(), nn.GELU(), nn.LeakyReLU(0.3), nn.Softplus(), nn.Dropout(0.5), nn.Identity()]


def network(*between: nn.Module, bias: bool = True, second_bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10, bias=bias), *between, nn.Linear(10, 4, bias=second_bias))
    with torch.no_grad():
        model[0].weight[[1, 7]] = 0  # constants
        model[-1].weight[:, [2, 7]] = 0  # unread
    return model.eval().double().requires_grad_(False)


def shrunk(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, int]:
    made = copy.deepcopy(model)
    return made, shrink(made, observed(made, {len(x): x}))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda module: type(module).__name__)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("second_bias", [True, False])
def test_constants_go_into_the_next_bias(activation, bias, second_bias):
    model, x = network(activation, bias=bias, second_bias=second_bias), torch.randn(5, 6).double()
    made, gone = shrunk(model, x)
    assert gone == 3
    assert (made[0].out_features, made[-1].in_features) == (7, 7)
    assert torch.allclose(made(x), model(x), rtol=1e-12, atol=1e-12)


def test_through_a_batch_norm():
    model = network(nn.BatchNorm1d(10), nn.ReLU())
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 2)
        model[1].weight.normal_()
        model[1].bias.normal_()
    x = torch.randn(5, 6).double()
    made, gone = shrunk(model, x)
    assert gone == 3
    assert made[1].running_mean.shape == (7,)
    assert torch.allclose(made(x), model(x), rtol=1e-12, atol=1e-12)


def test_three_layers_and_rows_in_three_dimensions():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    with torch.no_grad():
        model[0].weight[3] = 0
        model[2].weight[[0, 5]] = 0
        model[4].weight[:, 8] = 0
    model.eval()
    x = torch.randn(2, 4, 5).double()
    made, gone = shrunk(model, x)
    assert gone == 4
    assert torch.allclose(made(x), model(x), rtol=1e-12, atol=1e-12)


def hooked(model: nn.Sequential) -> nn.Sequential:
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    return model


class Scaled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


LEFT = {
    "a function of the whole row": network(nn.Softmax(1)),
    "a batch-norm in training": network(nn.BatchNorm1d(10, track_running_stats=False)),
    "hooks": hooked(network(nn.ReLU())),
    "a class of one's own": Scaled(*network(nn.ReLU())),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name):
    x = torch.randn(5, 6).double()
    made, gone = shrunk(LEFT[name], x)
    assert gone == 0
    assert torch.equal(made(x), LEFT[name](x))


def test_a_layer_used_twice_is_left_alone():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared).requires_grad_(False).eval()
    with torch.no_grad():
        shared.weight[2] = 0
    x = torch.randn(5, 6)
    assert shrunk(model, x)[1] == 0


def test_a_layer_of_zeros_keeps_its_neurons():
    model = network(nn.ReLU())
    with torch.no_grad():
        model[0].weight.zero_()
    x = torch.randn(5, 6).double()
    made, gone = shrunk(model, x)
    assert gone == 0
    assert torch.equal(made(x), model(x))
