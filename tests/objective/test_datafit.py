"""The data fit: g − h is the fit, both are convex, gradients are right."""

import pytest
import torch

from feta.objective.activation import Activation, Softplus
from feta.objective.datafit import DataFit

RHOS = [Activation.RELU, Activation.LINEAR, Softplus(4.0), Softplus(200.0)]  # those that the paper splits


@pytest.fixture(params=[(r, b) for r in RHOS for b in (True, False)], ids=str)
def case(request):
    rho, with_bias = request.param
    generator = torch.Generator().manual_seed(3)
    A = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    B = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    if rho is not Activation.LINEAR:
        B = B.clamp_min(0)
    V = torch.randn(6 + with_bias, 4, generator=generator, dtype=torch.float64)
    return DataFit(rho, with_bias), V, A, B


def test_outputs_include_the_bias_row(case):
    fit, V, A, _ = case
    extended = torch.cat([A, torch.ones(len(A), 1, dtype=A.dtype)], dim=1) if fit.with_bias else A
    torch.testing.assert_close(fit.outputs(V, A), extended @ V)


def test_g_minus_h_is_the_fit(case):
    fit, V, A, B = case
    torch.testing.assert_close(fit.g(V, A, B) - fit.h(V, A, B), fit.value(V, A, B))


@pytest.mark.parametrize("part", ["g", "h"])
def test_both_parts_are_convex_along_random_segments(case, part):
    fit, V, A, B = case
    function = getattr(fit, part)
    generator = torch.Generator().manual_seed(5)
    for _ in range(50):
        X = 3 * torch.randn(V.shape, generator=generator, dtype=V.dtype)
        Y = 3 * torch.randn(V.shape, generator=generator, dtype=V.dtype)
        t = float(torch.rand((), generator=generator))
        chord = t * function(X, A, B) + (1 - t) * function(Y, A, B)
        assert function(t * X + (1 - t) * Y, A, B) <= chord + 1e-9 * chord.abs()


@pytest.mark.parametrize("part", ["value", "g", "h"])
def test_gradients_by_finite_differences(case, part):
    fit, V, A, B = case
    Z = fit.outputs(V, A)
    gradient = {
        "value": lambda: fit.gradient(V, A, B),
        "g": lambda: fit.pull_back(A, fit.g_slope(Z)),
        "h": lambda: fit.pull_back(A, fit.h_slope(Z, B)),
    }[part]()
    function = getattr(fit, part)
    for index in [(0, 0), (3, 1), (len(V) - 1, 3)]:
        shift = torch.zeros_like(V)
        shift[index] = 1e-6
        slope = (function(V + shift, A, B) - function(V - shift, A, B)) / 2e-6
        assert float(gradient[index]) == pytest.approx(float(slope), rel=1e-5, abs=1e-5)


def test_softplus_neither_overflows_nor_loses_the_relu():
    Z = torch.tensor([-1e6, -1.0, 0.0, 1.0, 1e6])
    value = Softplus(50.0)(Z)
    assert torch.isfinite(value).all()
    torch.testing.assert_close(value, Z.clamp_min(0), atol=0.02, rtol=0)
    assert float(Softplus(2.0)(torch.zeros(()))) == pytest.approx(0.34657, abs=1e-4)  # log(2) / theta


@pytest.mark.parametrize("rho", [rho for rho in Activation if rho is not Activation.LINEAR])
def test_slopes_and_their_largest_size(rho):
    Z = torch.linspace(-9, 9, 4001, dtype=torch.float64)[:, None].requires_grad_()
    (slope,) = torch.autograd.grad(rho(Z).sum(), Z)
    kinks = torch.isin(Z.detach().round(decimals=6), torch.tensor([-3.0, 0.0, 3.0, 6.0], dtype=torch.float64))
    torch.testing.assert_close(rho.slope(Z.detach())[~kinks], slope[~kinks], rtol=1e-6, atol=1e-9)
    assert float(slope.abs().max()) <= rho.steepest + 1e-3


@pytest.mark.parametrize("rho", ["gelu", "silu", "relu6", "hardswish", "leaky_relu"])
def test_a_step_to_the_targets_of_a_smooth_activation_lowers_the_error(rho):
    fit, generator = DataFit(Activation(rho), with_bias=False), torch.Generator().manual_seed(0)
    Z0, Z = (torch.randn(500, 3, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    B = fit.rho(Z0)
    assert fit.error(fit.targets(Z, B), B) < fit.error(Z, B)
    torch.testing.assert_close(fit.targets(Z0, B), Z0)
