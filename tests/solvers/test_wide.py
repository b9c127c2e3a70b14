"""Without a Gram matrix: the same least-squares problems, from held rows."""

from dataclasses import replace

import pytest
import torch

from correlated import extended, problem, relu_layer, stacked
from feta.calibration.statistics import gram
from feta.calibration.stream import TensorStream
from feta.problem import Activation, Status
from feta.pruners import Feta, Threshold
from feta.solvers.gram import SLOW, GramSystem
from feta.solvers.refit import masked_refit
from feta.solvers.wide import RowsSystem
from feta.sparsity import Sparsity


def rows(seed=0, m=300, d_in=24, d_out=7, dtype=torch.float64):
    A, W, b = relu_layer(seed, m, d_in, d_out)
    A = A + 0.5
    A[:, 3] = 0  # a dead input
    return A.to(dtype), 2 * W.to(dtype), b.to(dtype)


@pytest.mark.parametrize("bias", [True, False])
def test_the_dense_step_is_that_of_the_gram_matrix(bias):
    A, W, b = rows()
    X, V = extended(A, bias), stacked(W, b if bias else None)
    H, C = X.t() @ X, X.t() @ (X @ V + torch.sin(X @ V))
    # The Gram form iterates in float32: later on a near tie would fall the other way, and the paths part.
    settings = replace(SLOW, max_iterations=16)
    ours = RowsSystem.of(A, bias).support(C, V, 60, settings, None)
    theirs = GramSystem(H, len(W)).support(C, V, 60, settings, None)
    assert int(ours.mask.sum()) == 60
    assert torch.equal(ours.mask, theirs.mask[: len(W)])


@pytest.mark.parametrize("bias", [True, False])
def test_refits_agree_with_exact_ones(bias):
    A, W, b = rows(1)
    X, V = extended(A, bias), stacked(W, b if bias else None)
    mask = torch.rand(W.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    mask[3] = False
    H, C = X.t() @ X, X.t() @ torch.relu(X @ V)
    exact = masked_refit(H, C, mask, ridge=1e-3, toward=V).V
    torch.testing.assert_close(RowsSystem.of(A, bias).refit(C, mask, V, 1e-3).V, exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("activation", list(Activation))
def test_a_wide_layer_is_solved_on_rows_and_says_so(activation):
    A, W, b = rows(2, m=900, d_in=200, d_out=20, dtype=torch.float32)
    given = problem(A, W, b, activation, 250)
    methods = {"threshold": Threshold(), "gram": Feta(), "rows": Feta(memory=5e-4), "few rows": Feta(memory=2e-4)}
    found = {name: method.prune(given, Sparsity(0.9)) for name, method in methods.items()}
    for solution in found.values():
        assert int(solution.U.count_nonzero()) == 400
        assert solution.status is Status.OK
    for name, memory, most in (("rows", "0.0005", 206), ("few rows", "0.0002", 114)):
        assert f"for a Gram matrix, over Feta.memory = {memory}: solved on" in found[name].message
        assert most / 2 < found[name].stats["held_rows"] <= most
    assert found["gram"].message == ""
    errors = {name: float(given.fit.value(stacked(U), A, given.stream.B)) for name, U in found.items()}
    assert errors["gram"] < errors["rows"] < errors["few rows"]
    assert errors["rows"] < errors["threshold"]


def test_float32_holds_on_inputs_of_large_mean():
    A, W, b = rows(3, m=500, d_in=40, d_out=10)
    A = A + 5
    H = gram(TensorStream(A, A @ W), with_bias=True).H
    V = stacked(W, b)
    C = H @ V
    found = RowsSystem.of(A.float(), True).support(C, V, 80, SLOW, None)
    expected = GramSystem(H, 40).support(C, V, 80, SLOW, None)

    def loss(mask):
        E = masked_refit(H, C, mask[:40]).V - V
        return float((E * (H @ E)).sum())

    assert loss(found.mask) < 1.05 * loss(expected.mask)
