"""Acc-Prox-SVRG reaches the optimum of full-batch proximal gradient; the DCA never raises its objective."""

import pytest
import torch

from feta.calibration.stream import TensorStream
from feta.objective.activation import Softplus
from feta.objective.datafit import DataFit
from feta.objective.group_lasso import GroupLasso
from feta.objective.l1 import L1
from feta.objective.penalty import Regularised
from feta.problem import Activation, LayerProblem
from feta.solvers.dca import Svrg, acc_prox_svrg, dca, full_pass
from feta.solvers.lambda_path import solve_path, support_of
from feta.solvers.norms import largest_eigenvalue


@pytest.fixture
def layer():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(600, 8, generator=generator, dtype=torch.float64)
    W = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    B = (A @ W + 0.3).clamp_min(0)
    V = torch.cat([W, torch.full((1, 5), 0.3, dtype=torch.float64)])
    return V, TensorStream(A, B, chunk_rows=250), A, B


RELU = DataFit(Activation.RELU, with_bias=True)


def reference(V, A, objective, slope, steps=20000):
    """Plain proximal gradient on the whole data for the linearised problem."""
    m, fit = len(A), objective.fit
    step = m / (2 * float(torch.linalg.eigvalsh(A.t() @ A)[-1] + m))
    for _ in range(steps):
        Z = fit.outputs(V, A)
        V = V - step * (fit.pull_back(A, fit.g_slope(Z)) / m - slope)
        V = objective.prox(V, step)
    return V


@pytest.mark.parametrize(("penalty", "strength"), [(L1(), 0.2), (GroupLasso(1), 0.4), (GroupLasso(0), 0.4)], ids=str)
def test_svrg_reaches_the_optimum_of_proximal_gradient(layer, penalty, strength):
    V, stream, A, _ = layer
    objective = Regularised(DataFit(Softplus(5.0), with_bias=True), penalty, strength)
    start = full_pass(V, stream, objective.fit)
    expected = reference(V, A, objective, start.h_gradient)
    generator = torch.Generator().manual_seed(1)
    settings = Svrg(stages=60, batch=50, step=0.05, momentum=0.5)
    found = acc_prox_svrg(V, stream, objective, settings, start, generator)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rho", [*Activation, Softplus(20.0)], ids=str)
def test_full_pass_is_the_mean_over_rows(layer, rho):
    V, stream, A, B = layer
    fit = DataFit(rho, with_bias=True)
    here = full_pass(V, stream, fit)
    assert here.fit == pytest.approx(float(fit.value(V, A, B)) / len(A))
    torch.testing.assert_close(here.g_gradient - here.h_gradient, fit.gradient(V, A, B) / len(A))


def test_dca_lowers_its_objective_and_shortens_a_step_that_is_too_long(layer):
    V, stream, _, _ = layer
    objective = Regularised(RELU, L1(), 0.1)
    for step in (0.02, 3.0):
        result = dca(V, stream, objective, Svrg(step=step), torch.Generator().manual_seed(0), outer=12)
        assert list(result.values) == sorted(result.values, reverse=True)
        assert torch.isfinite(result.V).all()
    assert result.settings.step < 3.0


def test_zero_strength_stays_at_the_trained_weights(layer):
    V, stream, _, _ = layer
    result = dca(V, stream, Regularised(RELU, L1(), 0.0), Svrg(), torch.Generator().manual_seed(0), outer=2)
    torch.testing.assert_close(result.V, V)


def test_search_finds_the_count(layer):
    V, stream, _, _ = layer
    problem = LayerProblem(V[:-1].clone(), V[-1].clone(), stream)
    objective, generator = Regularised(RELU, L1(), 0.0), torch.Generator().manual_seed(0)
    result, searched = solve_path(problem, objective, Svrg(step=0.02), generator, keep=12, outer=3, search_steps=14)
    U = result.V[:-1]
    assert 12 <= result.nonzeros <= 14
    assert len(searched) == 14
    mask = support_of(U, L1(), problem.W, 12)
    assert int(mask.sum()) == 12
    assert U.abs()[~mask].max() <= U.abs()[mask].min()


def test_group_support_is_whole_groups():
    U = torch.tensor([[1.0, 1.0], [0.0, 3.0], [0.1, 0.1]])
    mask = support_of(U, GroupLasso(1), U, 5)
    assert mask.tolist() == [[True, True], [True, True], [False, False]]


def test_power_iteration():
    X = torch.randn(50, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    H = X.t() @ X
    assert largest_eigenvalue(H) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)
    assert largest_eigenvalue(torch.zeros(3, 3)) > 0
