"""Acc-Prox-SVRG reaches the optimum of full-batch proximal gradient; the DCA never raises its objective."""

import pytest
import torch

from feta.calibration.stream import TensorStream
from feta.objective.datafit import DataFit
from feta.objective.penalty import L1, GroupLasso
from feta.objective.rectifier import Identity, Relu, Softplus
from feta.problem import LayerProblem
from feta.solvers.dca import dca
from feta.solvers.lambda_path import solve_path, support_of
from feta.solvers.power import largest_eigenvalue
from feta.solvers.prox_svrg import Svrg, acc_prox_svrg, full_pass


@pytest.fixture
def layer():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(600, 8, generator=generator, dtype=torch.float64)
    W = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    B = (A @ W + 0.3).clamp_min(0)
    V = torch.cat([W, torch.full((1, 5), 0.3, dtype=torch.float64)])
    return V, TensorStream(A, B, chunk_rows=250), A, B


def reference(V, A, B, fit, penalty, slope, steps=20000):
    """Plain proximal gradient on the whole data for the linearised problem."""
    m = len(A)
    step = m / (2 * float(torch.linalg.eigvalsh(A.t() @ A)[-1] + m))
    for _ in range(steps):
        Z = fit.outputs(V, A)
        V = V - step * (fit.pull_back(A, fit.g_slope(Z)) / m - slope)
        V = torch.cat([penalty.prox(V[:-1], step), V[-1:]])
    return V


@pytest.mark.parametrize("penalty", [L1(0.2), GroupLasso(0.4, 1), GroupLasso(0.4, 0)], ids=str)
def test_svrg_reaches_the_optimum_of_proximal_gradient(layer, penalty):
    V, stream, A, B = layer
    fit = DataFit(Softplus(5.0), with_bias=True)
    start = full_pass(V, stream, fit)
    expected = reference(V, A, B, fit, penalty, start.h_gradient)
    found = V
    generator = torch.Generator().manual_seed(1)
    settings = Svrg(stages=60, batch=50, step=0.05, momentum=0.5)
    found = acc_prox_svrg(V, stream, fit, penalty, settings, start, generator)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rectifier", [Relu(), Softplus(20.0), Identity()], ids=str)
def test_full_pass_is_the_mean_over_rows(layer, rectifier):
    V, stream, A, B = layer
    fit = DataFit(rectifier, with_bias=True)
    here = full_pass(V, stream, fit)
    assert here.fit == pytest.approx(float(fit.value(V, A, B)) / len(A))
    torch.testing.assert_close(here.g_gradient - here.h_gradient, fit.gradient(V, A, B) / len(A))


def test_dca_lowers_its_objective_and_shortens_a_step_that_is_too_long(layer):
    V, stream, _, _ = layer
    fit, penalty = DataFit(Relu(), True), L1(0.1)
    for step in (0.02, 3.0):
        result = dca(V, stream, fit, penalty, Svrg(step=step), torch.Generator().manual_seed(0), outer=12)
        assert list(result.objectives) == sorted(result.objectives, reverse=True)
        assert torch.isfinite(result.V).all()
    assert result.settings.step < 3.0


def test_zero_strength_stays_at_the_trained_weights(layer):
    V, stream, _, _ = layer
    result = dca(V, stream, DataFit(Relu(), True), L1(0.0), Svrg(), torch.Generator().manual_seed(0), outer=2)
    torch.testing.assert_close(result.V, V)


def test_search_finds_the_count(layer):
    V, stream, _, _ = layer
    problem = LayerProblem(V[:-1].clone(), V[-1].clone(), stream)
    path = solve_path(
        problem, V, DataFit(Relu(), True), L1, Svrg(step=0.02), strength=None, keep=12, outer=3, search_steps=14,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    kept = int(torch.count_nonzero(path.result.V[:-1]))
    assert 11 <= kept <= 14
    mask = support_of(path.result.V[:-1], path.penalty, problem.W, 12)
    assert int(mask.sum()) == 12
    smallest_kept = path.result.V[:-1].abs()[mask].sort().values[max(0, 12 - kept)]
    assert path.result.V[:-1].abs()[~mask].max() <= smallest_kept + 1e-12


def test_group_support_is_whole_groups():
    U = torch.tensor([[1.0, 1.0], [0.0, 3.0], [0.1, 0.1]])
    mask = support_of(U, GroupLasso(1.0, 1), U, 5)
    assert mask.tolist() == [[True, True], [True, True], [False, False]]


def test_power_iteration():
    X = torch.randn(50, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    H = X.t() @ X
    assert largest_eigenvalue(H) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)
    assert largest_eigenvalue(torch.zeros(3, 3)) > 0
