"""Refits against numpy's least squares and the normal equations, and the ways a system can go wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from correlated import extended, layer, stacked
from feta.calibration.stream import TensorStream
from feta.errors import ConfigError, ModelError
from feta.problem import LayerProblem, Status
from feta.solvers.refit import masked_refit, refit_dense

F64 = torch.float64


def rows(seed=0, m=80, d=12, d_out=7):
    """Correlated inputs A (m, d) and targets T (m, d_out)."""
    T = torch.randn(m, d_out, generator=torch.Generator().manual_seed(seed + 1), dtype=F64)
    return layer(seed, m, d, mean=0.0)[0], T


def random_mask(shape, density, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


def slow(A, T, mask):
    V = np.zeros((A.shape[1], T.shape[1]))
    for j in range(T.shape[1]):
        S = np.flatnonzero(mask[:, j].numpy())
        if len(S):
            V[S, j] = np.linalg.lstsq(A.numpy()[:, S], T.numpy()[:, j], rcond=None)[0]
    return torch.from_numpy(V)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 12), st.floats(0, 1))
def test_is_least_squares_on_each_support(seed, d, d_out, density):
    A, T = rows(seed, m=3 * d + 5, d=d, d_out=d_out)
    mask = random_mask((d, d_out), density, seed)
    refit = masked_refit(A.t() @ A, A.t() @ T, mask)
    assert refit.status is Status.OK
    assert not refit.V[~mask].any()
    torch.testing.assert_close(A @ refit.V, A @ slow(A, T, mask), rtol=1e-7, atol=1e-7)


def test_rows_beyond_the_mask_are_in_every_support():
    A, T = rows()
    A, mask = extended(A), random_mask((12, 7), 0.3)
    whole = torch.cat([mask, torch.ones(1, 7, dtype=torch.bool)])
    torch.testing.assert_close(masked_refit(A.t() @ A, A.t() @ T, mask).V, slow(A, T, whole))


def test_ridge_pulls_to_toward_and_spares_the_bias():
    A, T = rows()
    A = extended(A)
    H, C, W = A.t() @ A, A.t() @ T, torch.randn(13, 7, dtype=F64)
    mask = random_mask((12, 7), 0.5)
    V = masked_refit(H, C, mask, ridge=0.1, toward=W).V
    r = 0.1 * H.diagonal()[:12].mean() * torch.tensor([1.0] * 12 + [0.0], dtype=F64)[:, None]
    gradient = H @ V - C + r * (V - W)
    whole = torch.cat([mask, torch.ones(1, 7, dtype=torch.bool)])
    assert gradient[whole].abs().max() < 1e-9 * C.abs().max()


def test_singular_systems_are_damped_and_reported():
    A, T = rows()
    A = torch.cat([A, A[:, :3]], 1)  # collinear
    mask = torch.ones(15, 7, dtype=torch.bool)
    mask[12:, 0] = False  # one sound column
    refit = masked_refit(A.t() @ A, A.t() @ T, mask)
    assert refit.status is Status.DAMPED
    assert 0 < refit.damping <= 1e-8
    torch.testing.assert_close(refit.V[:, 0], slow(A, T, mask)[:, 0])
    torch.testing.assert_close(A @ refit.V, A @ slow(A, T, mask), rtol=1e-5, atol=1e-5)


def test_fewer_rows_than_inputs_still_fits_the_data():
    A, T = rows(m=8, d=20)
    refit = masked_refit(A.t() @ A, A.t() @ T, torch.ones(20, 7, dtype=torch.bool))
    assert refit.status is Status.DAMPED
    torch.testing.assert_close(A @ refit.V, T, rtol=1e-4, atol=1e-4)


def test_a_dead_input_keeps_toward_or_becomes_zero():
    A, T = rows()
    A[:, 4] = 0
    W = torch.randn(12, 7, dtype=F64)
    mask = torch.ones(12, 7, dtype=torch.bool)
    H, C = A.t() @ A, A.t() @ T
    plain, pulled = masked_refit(H, C, mask), masked_refit(H, C, mask, toward=W)
    assert plain.status is Status.OK
    assert not plain.V[4].any()
    torch.testing.assert_close(pulled.V[4], W[4])
    torch.testing.assert_close(pulled.V[5], plain.V[5])
    torch.testing.assert_close(masked_refit(H, C, mask, ridge=0.01, toward=W).V[4], W[4])


def test_supports_of_very_different_sizes():
    A, T = rows(m=400, d=150, d_out=6)
    mask = torch.arange(150)[:, None] < torch.tensor([150, 0, 1, 75, 149, 40])
    V = masked_refit(A.t() @ A, A.t() @ T, mask).V
    torch.testing.assert_close(A @ V, A @ slow(A, T, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(4, 2, dtype=torch.bool)}, r"bool, got H \(3, 3\), mask \(4, 2\)"),
        ({"C": torch.ones(3, 5)}, r"masked_refit.C must have shape \(3, 2\), got \(3, 5\)"),
        ({"toward": torch.ones(2, 2)}, "masked_refit.toward must have shape"),
        ({"ridge": -1}, "masked_refit.ridge must be >= 0, got -1"),
        ({"H": 3 - 2 * torch.eye(3)}, "for every column, got 2 without one"),
    ],
)
def test_errors_say_what_was_wrong(change, message):
    sound = {"H": torch.eye(3), "C": torch.ones(3, 2), "mask": torch.ones(3, 2, dtype=torch.bool)}
    with pytest.raises((ConfigError, ModelError), match=message):
        masked_refit(**(sound | change))


def dense(bias=True, dtype=F64):
    """A layer whose targets are not its own outputs."""
    A, W, b = (X.to(dtype) for X in layer(d_in=5, d_out=3))
    return LayerProblem(W, b if bias else None, TensorStream(A, (A @ W).sin() + 2, 7))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ridge", [1e-4, 1.0])
def test_the_minimum_of_its_objective(bias, ridge):
    known = dense(bias=bias)
    found = refit_dense(known, ridge)
    E, W = extended(known.stream.A, bias), known.trained
    r = ridge * float((E.t() @ E).diagonal().mean())
    expected = torch.linalg.solve(E.t() @ E + r * torch.eye(len(W)), E.t() @ known.stream.B + r * W)
    torch.testing.assert_close(stacked(found), expected)
    assert found.status is Status.OK


def test_outputs_a_layer_can_give_are_given():
    known = dense()
    A = known.stream.A
    truth = torch.randn(6, 3, dtype=A.dtype)
    found = refit_dense(replace(known, stream=TensorStream(A, extended(A) @ truth)), ridge=1e-12)
    torch.testing.assert_close(stacked(found), truth)


def test_inputs_the_data_says_nothing_about_keep_their_weights():
    known = dense()
    known.stream.A[:, 2] = 0
    torch.testing.assert_close(refit_dense(known).U[2], known.W[2])


@pytest.mark.parametrize("bias", [True, False])
def test_dtype_and_the_problem_are_kept(bias):
    known = dense(bias=bias, dtype=torch.float32)
    before = known.W.clone()
    found = refit_dense(known)
    assert found.U.dtype == torch.float32
    assert (found.bias is not None) == bias
    assert torch.equal(known.W, before)


def test_bias_rows():
    known = dense()
    assert torch.equal(known.trained, torch.cat([known.W, known.bias[None]]))
    found = known.solved(known.trained)
    assert torch.equal(found.U, known.W)
    assert torch.equal(found.bias, known.bias)
    assert known.solved(known.W).bias is known.bias  # no row for it: the bias stays
    plain = dense(bias=False)
    assert plain.trained is plain.W
    assert plain.solved(plain.W).bias is None
