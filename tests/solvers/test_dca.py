"""Acc-Prox-SVRG reaches the optimum of full-batch proximal gradient; the DCA never raises its objective."""

import pytest
import torch

from correlated import problem
from feta.errors import DataError
from feta.objective.activation import Softplus
from feta.objective.datafit import DataFit
from feta.objective.penalty import L1, GroupLasso, Regularised
from feta.problem import Activation
from feta.solvers.dca import Dca, solve_path, support_of
from feta.solvers.norms import largest_eigenvalue


@pytest.fixture
def layer():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(600, 8, generator=generator, dtype=torch.float64)
    W = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    return problem(A, W, torch.full((5,), 0.3, dtype=torch.float64), chunk_rows=250)


def solver(stream, objective, seed=0, **settings):
    return Dca(stream, objective, torch.Generator().manual_seed(seed), **settings)


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
    V, stream, A = layer.trained, layer.stream, layer.stream.A
    objective = Regularised(DataFit(Softplus(5.0), with_bias=True), penalty, strength)
    svrg = solver(stream, objective, 1, stages=60, batch=50, step=0.05, momentum=0.5)
    start = svrg.full_pass(V)
    expected = reference(V, A, objective, start.h_gradient)
    found = svrg.acc_prox_svrg(V, start)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rho", [*Activation, Softplus(20.0)], ids=str)
def test_full_pass_is_the_mean_over_rows(layer, rho):
    V, stream, A, B = layer.trained, layer.stream, layer.stream.A, layer.stream.B
    fit = DataFit(rho, with_bias=True)
    here = solver(stream, Regularised(fit, L1(), 0.0)).full_pass(V)
    assert here.fit == pytest.approx(float(fit.value(V, A, B)) / len(A))
    torch.testing.assert_close(here.g_gradient - here.h_gradient, fit.gradient(V, A, B) / len(A))


def test_dca_lowers_its_objective_and_shortens_a_step_that_is_too_long(layer):
    for step in (0.02, 3.0):
        result = solver(layer.stream, Regularised(layer.fit, L1(), 0.1), step=step).run(layer.trained, 12)
        assert result.values == sorted(result.values, reverse=True)
        assert torch.isfinite(result.V).all()
    assert result.solver.step < 3.0


def test_zero_strength_stays_at_the_trained_weights(layer):
    found = solver(layer.stream, Regularised(layer.fit, L1(), 0.0)).run(layer.trained, 2)
    torch.testing.assert_close(found.V, layer.trained)


def test_search_finds_the_count(layer):
    svrg = solver(layer.stream, Regularised(layer.fit, L1(), 0.0), step=0.02)
    result, searched = solve_path(layer, svrg, keep=12, outer=3, search_steps=14)
    U = result.V[:-1]
    assert 12 <= result.nonzeros <= 14
    assert len(searched) == 14
    mask = support_of(U, L1(), layer.W, 12)
    assert int(mask.sum()) == 12
    assert U.abs()[~mask].max() <= U.abs()[mask].min()


def test_outputs_that_are_no_numbers_are_refused(layer):
    layer.stream.B[3, 2] = torch.inf
    svrg = solver(layer.stream, Regularised(layer.fit, L1(), 0.0))
    with pytest.raises(DataError, match="outputs must be finite"):
        solve_path(layer, svrg, 12, outer=1, search_steps=2)


def test_group_support_is_whole_groups():
    U = torch.tensor([[1.0, 1.0], [0.0, 3.0], [0.1, 0.1]])
    mask = support_of(U, GroupLasso(1), U, 5)
    assert mask.tolist() == [[True, True], [True, True], [False, False]]


def test_power_iteration():
    X = torch.randn(50, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    H = X.t() @ X
    assert largest_eigenvalue(H) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)
    assert largest_eigenvalue(torch.zeros(3, 3)) > 0


@pytest.mark.parametrize("keep", [4, 12, 25, 39])
@pytest.mark.parametrize("outer", [1, 8])
def test_no_iterate_falls_below_the_count(layer, keep, outer):
    """Trials that leave too few weights must not be where the next ones start: what has left seldom comes back."""
    for step in (0.005, 0.05):
        svrg = solver(layer.stream, Regularised(layer.fit, L1(), 0.0), step=step)
        result, searched = solve_path(layer, svrg, keep, outer=outer, search_steps=10)
        assert result.nonzeros >= keep
        if keep <= 25:
            assert any(count < keep for _, count in searched)
        mask = support_of(result.V[:-1], L1(), layer.W, keep)
        assert int((result.V[:-1] * mask).count_nonzero()) == keep
