"""support_admm against the iteration as it is written, with explicit inverses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import correlated
from correlated import extended, stacked
from feta.errors import ConfigError
from feta.problem import Status
from feta.solvers.refit import masked_refit
from feta.solvers.support_admm import Admm, support_admm
from feta.sparsity import top_k_mask

F64 = torch.float64


def layer(seed=0, d=15, d_out=6, bias=False):
    """H, C, W of a layer with correlated, scaled and shifted inputs, and targets near its outputs."""
    A, W, b = correlated.layer(seed, 120, d, d_out, mean=0.0)
    A, W = extended(A * torch.logspace(-1, 1, d, dtype=F64) + 1, bias), stacked(W, b if bias else None)
    noise = torch.randn(120, d_out, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return A.t() @ A, A.t() @ (A @ W + noise), W


def literal(H, C, W0, k, relaxation=1.0):
    s = H.diagonal().sqrt()[:, None]
    H, C, D, V, rho = H / s / s.t(), C / s, W0 * s, torch.zeros_like(C), 0.1
    before = top_k_mask(D.abs(), k)
    for t in range(1, 301):
        W = torch.linalg.inv(H + rho * torch.eye(len(H), dtype=F64)) @ (C - V + rho * D)
        relaxed = relaxation * W + (1 - relaxation) * D
        Y = relaxed + V / rho
        mask = top_k_mask(Y.abs(), k)
        D = Y * mask
        V = V + rho * (relaxed - D)
        if t % 3 == 0:
            changed = int((mask != before).sum()) / k
            before = mask
            if changed == 0 and t >= 6:
                break
            rho *= 1.3 if changed > 0.1 else 1.2 if changed > 0.005 else 1.1
    return mask, D / s, t, rho


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 999), st.integers(2, 20), st.integers(1, 30), st.floats(0.05, 0.9), st.sampled_from([1.0, 1.6]))
def test_is_the_written_iteration(seed, d, d_out, density, relaxation):
    H, C, W0 = layer(seed, d=d, d_out=d_out)
    k = max(1, round(density * W0.numel()))
    found = support_admm(H, C, W0, k, Admm(relaxation=relaxation), dtype=F64)
    mask, D, iterations, rho = literal(H, C, W0, k, relaxation=relaxation)
    assert torch.equal(found.mask, mask)
    assert found.iterations == iterations
    assert found.rho == pytest.approx(rho)
    torch.testing.assert_close(found.D, D, rtol=1e-6, atol=1e-8)


def test_unpenalised_rows_are_minimised_over():
    """Eliminating the bias by hand, by centring, gives the same search."""
    H, C, W0 = layer(bias=True)
    found = support_admm(H, C, W0, 20, prunable=15, dtype=F64)
    h, m = H[:15, 15:], H[15, 15]
    mask, D, iterations, _ = literal(H[:15, :15] - h @ h.t() / m, C[:15] - h @ C[15:] / m, W0[:15], 20)
    assert found.iterations == iterations
    assert torch.equal(found.mask[:15], mask)
    assert bool(found.mask[15].all())
    torch.testing.assert_close(found.D[:15], D)
    torch.testing.assert_close((H @ found.D - C)[15], torch.zeros(6, dtype=F64), atol=1e-8, rtol=0)


def test_ridge_is_that_of_the_problem_with_it_written_out():
    H, C, W0 = layer()
    r = 0.1 * H.diagonal().mean()
    inside = support_admm(H, C, W0, 20, ridge=0.1, dtype=F64)
    outside = support_admm(H + r * torch.eye(15, dtype=F64), C + r * W0, W0, 20, dtype=F64)
    assert torch.equal(inside.mask, outside.mask)
    torch.testing.assert_close(inside.D, outside.D)


@pytest.mark.parametrize("seed", range(5))
def test_support_is_better_than_that_of_magnitudes(seed):
    H, C, W0 = layer(seed, d=40, d_out=20)

    def objective(mask):
        V = masked_refit(H, C, mask).V
        return float((V * (H @ V)).sum() / 2 - (C * V).sum())

    for k in (40, 120, 300):
        found = support_admm(H, C, W0, k)
        assert found.status is Status.OK
        assert objective(found.mask) < objective(top_k_mask(W0.abs(), k))


def test_scale_of_inputs_does_not_matter():
    H, C, W0 = layer()
    s = torch.logspace(-3, 3, 15, dtype=F64)[:, None]
    scaled = support_admm(s * H * s.t(), s * C, W0 / s, 20, dtype=F64)
    plain = support_admm(H, C, W0, 20, dtype=F64)
    assert torch.equal(scaled.mask, plain.mask)
    torch.testing.assert_close(scaled.D * s, plain.D)


def test_float32_finds_much_the_same_support():
    H, C, W0 = layer(d=40, d_out=20)
    single, double = (support_admm(H, C, W0, 120, dtype=dtype) for dtype in (torch.float32, F64))
    assert (single.mask != double.mask).sum() <= 6
    assert single.D.dtype == F64


@pytest.mark.parametrize("k", [0, 1, 89, 90])
def test_counts_at_the_edges(k):
    H, C, W0 = layer()
    found = support_admm(H, C, W0, k)
    assert int(found.mask.sum()) == k
    assert int(found.D.count_nonzero()) <= k
    if k == 90:  # nothing to prune: the least-squares solution, once it is reached
        admm = Admm(warm_up=3000, max_iterations=3000, schedule=((0, 1.0),))
        long = support_admm(H, C, W0, k, admm, dtype=F64)
        torch.testing.assert_close(long.D, torch.linalg.solve(H, C))


def test_dead_and_constant_inputs_come_last():
    H, C, W0 = layer(bias=True)
    H[3], H[:, 3], C[3] = 0, 0, 0  # dead
    H[7], H[:, 7], C[7] = 2 * H[15], 2 * H[15], 2 * C[15]  # always 2
    H[7, 7], H[15, 7], H[7, 15] = 4 * H[15, 15], 2 * H[15, 15], 2 * H[15, 15]
    noise = 1 + 1e-8 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = support_admm(H * noise * noise.t(), C, W0, 60, prunable=15, ridge=0.01)
    assert not found.mask[[3, 7]].any()
    assert bool(torch.isfinite(found.D).all())


def test_indefinite_matrix_is_damped_and_reported():
    H = torch.tensor([[1.0, 1.105], [1.105, 1.0]], dtype=F64)
    found = support_admm(H, torch.ones(2, 3, dtype=F64), torch.ones(2, 3, dtype=F64), 3)
    assert found.status is Status.DAMPED
    assert found.damping > 0


def test_a_support_does_not_rest_before_rho_has_grown():
    """Few weights kept: the mask does not move while rho is small, which says nothing."""
    H, C, W0 = layer(d=9, d_out=1)
    early, late = (support_admm(H, C, W0, 3, Admm(rho=0.01, rest=rest), dtype=F64) for rest in (0.0, 1.0))
    assert early.rho < 1 <= late.rho
    assert late.status is Status.OK


def test_iteration_limit_is_reported_and_progress_is_told():
    H, C, W0 = layer()
    seen = []
    found = support_admm(
        H, C, W0, 20, Admm(max_iterations=4), watch=lambda **values: seen.append(values["iteration"])
    )
    assert (found.status, found.iterations) == (Status.NOT_CONVERGED, 4)
    assert seen == [3, 4]


def test_arguments_are_left_alone():
    given = layer(bias=True)
    support_admm(*given, 20, prunable=15, ridge=0.1, dtype=F64)
    assert all(torch.equal(a, b) for a, b in zip(given, layer(bias=True), strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda H, C, W0: support_admm(H, C[1:], W0, 3), r"H \(d, d\) and C, .*, got H \(15, 15\), C \(14, 6\)"),
        (lambda H, C, W0: support_admm(H, C, W0, -1), "support_admm.k must be >= 0, got -1"),
        (lambda *_: Admm(every=0), "Admm.every must be >= 1, got 0"),
        (lambda *_: Admm(rho=0), "Admm.rho must be > 0, got 0"),
        (lambda *_: Admm(relaxation=2), r"Admm.relaxation must be in \(0, 2\), got 2"),
    ],
)
def test_errors_say_what_was_wrong(call, message):
    with pytest.raises(ConfigError, match=message):
        call(*layer())
