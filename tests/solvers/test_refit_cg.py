"""Refits by conjugate gradients against the exact ones, and the choice between the two."""

import pytest
import torch

from correlated import extended, relu_layer, stacked
from feta.solvers.gram import GramSystem
from feta.solvers.refit import masked_refit
from feta.solvers.refit_cg import STEPS, Centred, factors_are_cheaper
from feta.solvers.support_admm import support_admm

RIDGE = 1e-3


def system(seed=0, d_in=120, d_out=30, bias=True, offset=3.0):
    """A layer whose inputs decay in strength and stand far from zero, pruned by half: H, C, V, and the search."""
    A, W, b = relu_layer(seed, 1000, d_in, d_out)
    A = A * torch.logspace(0, -2, d_in, dtype=A.dtype) + offset
    X, V = extended(A, bias), stacked(W, b if bias else None)
    H = X.t() @ X
    return X, H, H @ V, V, support_admm(H, H @ V, V, W.numel() // 2, prunable=d_in)


def objective(H, C, V, toward, d_in):
    """What a refit minimises, less a constant: its error where C is H times `toward`."""
    r = RIDGE * H.diagonal()[:d_in].mean()
    E = V - toward
    return float((V * (H @ V)).sum() - 2 * (C * V).sum() + r * E[:d_in].square().sum())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_objective_is_that_of_the_exact_refit(bias, seed):
    _, H, C, V, found = system(seed, bias=bias)
    mask = found.mask[:120]
    ours = Centred(H, 120, RIDGE).refit(C, mask, V, found.D, None)
    exact = masked_refit(H, C, mask, ridge=RIDGE, toward=V)
    floor = -float((V * C).sum())  # the dense layer's
    least = objective(H, C, exact.V, V, 120) - floor
    assert objective(H, C, ours.V, V, 120) - floor <= (1 + 1e-4) * least
    assert 0.999 * least <= ours.error <= 1.5 * least  # that of the start
    assert 0 < ours.steps <= STEPS
    assert not ours.V[:120][~mask].any()


def test_moving_targets_are_followed_from_the_refit_before():
    X, H, C, V, found = system(1)
    mask, centred = found.mask[:120], Centred(H, 120, RIDGE)
    first = centred.refit(C, mask, V, found.D, None)
    B = torch.relu(X @ V)
    T = torch.where(B > 0, B, (X @ first.V).clamp_max(0))
    ours = centred.refit(X.t() @ T, mask, first.V, first.V, first.error).V
    exact = masked_refit(H, X.t() @ T, mask, ridge=RIDGE, toward=first.V).V
    before, after, best = (float((X @ U - T).square().sum()) for U in (first.V, ours, exact))
    assert after < before
    assert after <= best + 5e-3 * first.error


def test_a_dead_input_keeps_what_it_had():
    _, H, _, V, found = system(2)
    H[5], H[:, 5] = 0, 0
    mask = found.mask[:120].clone()
    mask[5] = True
    for ridge in (0.0, RIDGE):
        U = Centred(H, 120, ridge).refit(H @ V, mask, V, found.D, None).V
        torch.testing.assert_close(U[5], V[5], rtol=1e-5, atol=1e-6)
        assert bool(torch.isfinite(U).all())


def test_arguments_are_left_alone():
    _, H, C, V, found = system()
    given = [X.clone() for X in (H, C, V, found.D, found.mask)]
    Centred(H, 120, RIDGE).refit(C, found.mask[:120], V, found.D, None)
    assert all(torch.equal(a, b) for a, b in zip(given, (H, C, V, found.D, found.mask), strict=True))


def test_the_cheaper_way_is_taken():
    few, many = torch.zeros(600, 4, dtype=torch.bool), torch.ones(600, 4, dtype=torch.bool)
    few[:30] = True
    assert factors_are_cheaper(few)
    assert not factors_are_cheaper(many)
    _, H, C, V, found = system()
    assert GramSystem(H, 120).refit(C, found.mask[:120], V, RIDGE, found.D).steps > 0
    sparse = found.mask[:120] & (torch.arange(120)[:, None] < 12)
    assert GramSystem(H, 120).refit(C, sparse, V, RIDGE).steps == 0
