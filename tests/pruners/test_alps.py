"""ALPS: optimal on its support, better than thresholding, honest about how it ended."""

from functools import partial

import pytest
import torch

import correlated
from correlated import extended, problem, stacked
from feta.problem import Status
from feta.pruners.alps import Alps
from feta.solvers.refit import masked_refit, projected_cg
from feta.sparsity import Sparsity, top_k_mask

layer = partial(correlated.layer, m=300, d_in=30, d_out=12)


def with_bias(A, W, b, ridge):
    """H with the ridge, and W, with the bias as last row."""
    H, d_in = extended(A).t() @ extended(A), len(W)
    H.diagonal()[:d_in] += ridge * H.diagonal()[:d_in].mean()
    return H, stacked(W, b)


def objective(H, W, V):
    return float(((V - W) * (H @ (V - W))).sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_beats_thresholding_with_a_refit(seed, share):
    A, W, b = layer(seed)
    H, whole = with_bias(A, W, b, 0.01)
    solution = Alps(refit="exact").prune(problem(A, W, b), Sparsity(share))
    ours = objective(H, whole, stacked(solution))
    mask = top_k_mask(W.abs(), Sparsity(share).count(W.numel()))
    assert ours <= objective(H, whole, masked_refit(H, H @ whole, mask).V)
    assert solution.status is Status.OK
    assert int(solution.U.count_nonzero()) == Sparsity(share).count(W.numel())


def test_exact_refit_has_no_gradient_on_its_support():
    A, W, b = layer()
    H, whole = with_bias(A, W, b, 0.01)
    solution = Alps(refit="exact").prune(problem(A, W, b), Sparsity(0.8))
    V = stacked(solution)
    gradient = H @ (V - whole)
    assert gradient[V != 0].abs().max() < 1e-9 * (H @ whole).abs().max()
    assert gradient[V == 0].abs().max() > 1e-3 * (H @ whole).abs().max()


def test_conjugate_gradients_arrive_at_the_exact_refit():
    A, W, b = layer()
    long = Alps(refit_iterations=60).prune(problem(A, W, b), Sparsity(0.8))
    exact = Alps(refit="exact").prune(problem(A, W, b), Sparsity(0.8))
    torch.testing.assert_close(stacked(long), stacked(exact), rtol=1e-5, atol=1e-6)


def test_every_step_of_conjugate_gradients_helps():
    A, W, b = layer()
    H, whole = with_bias(A, W, b, 0.01)
    mask = torch.cat([top_k_mask(W.abs(), 60), torch.ones(1, 12, dtype=torch.bool)])
    start = whole.where(mask, 0)
    found = (projected_cg(lambda D: H @ D, H.diagonal(), H @ whole, start, mask, n) for n in range(12))
    values = [objective(H, whole, V) for V in found]
    assert values == sorted(values, reverse=True)
    best = objective(H, whole, masked_refit(H, H @ whole, mask).V)
    assert values[10] - best < 0.01 * (values[0] - best)


def test_bias_is_left_alone_when_asked():
    A, W, b = layer()
    solution = Alps(fit_bias=False, refit="exact").prune(problem(A, W, b), Sparsity(0.8))
    assert torch.equal(solution.bias, b)
    H = A.t() @ A
    H.diagonal().add_(0.01 * H.diagonal().mean())
    gradient = H @ (solution.U - W)
    assert gradient[solution.U != 0].abs().max() < 1e-9 * (H @ W).abs().max()
    fitted = Alps(refit="exact").prune(problem(A, W, b), Sparsity(0.8))
    Z = A @ W + b
    assert (A @ fitted.U + fitted.bias - Z).norm() < (A @ solution.U + b - Z).norm()


def test_collinear_inputs_without_ridge_are_damped_and_reported():
    A, W, b = layer()
    A[:, 5] = A[:, 4]
    solution = Alps(ridge=0, refit="exact").prune(problem(A, W, b), Sparsity(nonzeros=359))
    assert solution.status is Status.DAMPED
    assert solution.stats["refit_damping"] > 0
    Z = A @ W + b
    assert (A @ solution.U + solution.bias - Z).norm() < 1e-3 * Z.norm()


def test_iteration_limit_is_reported_and_steps_are_traced():
    A, W, b = layer()
    seen = []
    p = problem(A, W, b, trace=lambda phase, values: seen.append((phase, values["iteration"])))
    solution = Alps(max_iterations=4).prune(p, Sparsity(0.8))
    assert solution.status is Status.NOT_CONVERGED
    assert "after 4 iterations" in solution.message
    assert seen == [("admm", 3), ("admm", 4)]
