"""Norms of layers as operators, against the singular values of the matrices they are."""

import itertools

import pytest
import torch
from torch import nn

from feta.errors import ConfigError, ModelError
from feta.solvers.norms import operator_norm, operator_upper, periodic_norm, spectral_norm

SHAPE = (4, 7, 6)


def unrolled(layer: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """The matrix of a layer without its bias: column j is what the j-th unit image becomes."""
    units = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        layer = layer.double()
        return (layer(units) - layer(torch.zeros_like(units))).flatten(1).t()


def convolutions():
    names = "kernel_size", "stride", "padding", "dilation", "groups"
    for values in itertools.product(((2, 3), (3, 3)), (1, 2, (2, 3)), (0, (2, 1)), (1, 2), (1, 2)):
        yield dict(zip(names, values, strict=True))
    yield {"kernel_size": 1, "stride": 2, "padding": 1}
    yield {"kernel_size": 3, "padding": "same", "groups": 4}
    for mode in ("reflect", "replicate", "circular"):
        yield {"kernel_size": 3, "padding": 2, "padding_mode": mode, "stride": 2}


def conv_of(settings, seed=0) -> nn.Conv2d:
    torch.manual_seed(seed)
    return nn.Conv2d(4, 8, **settings)


@pytest.mark.parametrize("settings", list(convolutions()), ids=str)
def test_convolution_is_enclosed(settings):
    conv = conv_of(settings)
    true = spectral_norm(unrolled(conv, SHAPE))
    estimate = operator_norm(conv, SHAPE)
    assert estimate.converged
    assert true * (1 - 1e-4) <= estimate.value <= true * (1 + 1e-12)
    assert estimate.value <= estimate.upper
    assert estimate.upper >= true


@pytest.mark.parametrize("stride", [1, 2])
def test_upper_value_is_close_on_images_larger_than_the_kernel(stride):
    conv = conv_of({"kernel_size": 3, "padding": 1, "stride": stride})
    true = spectral_norm(unrolled(conv, (4, 12, 12)))
    assert true <= operator_upper(conv, (4, 12, 12)) <= 1.1 * true


def test_periodic_norm_is_that_of_the_circular_operator():
    conv = conv_of({"kernel_size": 3, "padding": 1, "padding_mode": "circular", "groups": 2})
    true = spectral_norm(unrolled(conv, SHAPE))
    assert periodic_norm(conv.weight.detach(), SHAPE[1:], groups=2) == pytest.approx(true, rel=1e-12)


def test_an_iteration_cut_short_says_so_and_stays_below():
    conv = conv_of({"kernel_size": 3, "padding": 1})
    estimate = operator_norm(conv, SHAPE, max_iterations=2)
    assert (estimate.converged, estimate.iterations) == (False, 2)
    assert estimate.value < spectral_norm(unrolled(conv, SHAPE)) <= estimate.upper


def test_the_operator_is_not_the_reshaped_kernel():
    """Eight equal kernels of ones see every pixel nine times: the operator is three times the matrix."""
    conv = nn.Conv2d(1, 1, 3, padding=1)
    nn.init.ones_(conv.weight)
    assert spectral_norm(conv.weight.reshape(1, 9)) == pytest.approx(3)
    assert operator_norm(conv, (1, 40, 40)).value == pytest.approx(9, rel=0.01)


def test_linear_is_exact_and_weight_stands_in():
    layer = nn.Linear(5, 3)
    other = torch.diag(torch.tensor([1.0, -7.0, 2.0])) @ torch.eye(3, 5)
    estimate = operator_norm(layer, (5,), weight=other)
    assert estimate.value == pytest.approx(7)
    assert 7 <= estimate.upper < 7.0001
    assert operator_norm(layer, (5,)).value == pytest.approx(
        torch.linalg.svdvals(layer.weight.detach().double())[0].item()
    )


def test_the_layer_is_not_changed():
    conv = conv_of({"kernel_size": 3})
    before = conv.weight.clone()
    operator_norm(conv, SHAPE)
    assert torch.equal(conv.weight, before)
    assert conv.weight.dtype == torch.float32
    assert conv.weight.grad is None


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda conv: operator_norm(conv, (3, 7, 6)), ConfigError, r"\(4, height, width\).*got \(3, 7, 6\)"),
        (lambda conv: operator_norm(conv, SHAPE, weight=torch.zeros(2, 2)), ConfigError, "weight must have shape"),
        (lambda conv: operator_norm(nn.ReLU(), SHAPE), ModelError, "must get a Linear or a Conv2d, got ReLU"),
        (lambda conv: operator_norm(conv, SHAPE, weight=conv.weight / 0), ModelError, "finite weights"),
        (lambda conv: spectral_norm(torch.tensor([[float("nan")]])), ModelError, "finite weights"),
        (lambda conv: spectral_norm(torch.ones(3)), ConfigError, "must get a matrix"),
    ],
)
def test_bad_input(ask, error, words):
    with pytest.raises(error, match=words):
        ask(conv_of({"kernel_size": 3}))


@pytest.mark.parametrize("scale", [1e-170, 1e160, 0.0])
def test_norms_of_extreme_weights(scale):
    conv = conv_of({"kernel_size": 3, "padding": 1}).double()
    plain, found = operator_norm(conv, SHAPE), operator_norm(conv, SHAPE, weight=scale * conv.weight)
    assert found.converged
    assert (found.value, found.upper) == pytest.approx((scale * plain.value, scale * plain.upper))
