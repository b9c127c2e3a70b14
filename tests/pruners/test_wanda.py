"""Wanda against a loop over outputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from correlated import problem
from feta.pruners.wanda import Wanda
from feta.sparsity import Sparsity


def layer(seed=0, m=30, d_in=8, d_out=5):
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(m, d_in, generator=g) * torch.logspace(-1, 1, d_in)
    return A, torch.randn(d_in, d_out, generator=g)


@given(st.integers(0, 99), st.integers(1, 10), st.integers(1, 8), st.floats(0, 0.999))
def test_keeps_the_best_of_each_output(seed, d_in, d_out, share):
    A, W = layer(seed, d_in=d_in, d_out=d_out)
    k = Sparsity(share).count(W.numel())
    expected = torch.zeros_like(W)
    for j in range(d_out):
        count = k // d_out + (1 if j < k % d_out else 0)
        score = {i: float(W[i, j].double().abs() * A[:, i].double().norm()) for i in range(d_in)}
        for i in sorted(score, key=lambda i: (-score[i], i))[:count]:
            expected[i, j] = W[i, j]
    solution = Wanda().prune(problem(A, W, torch.ones(W.shape[1])), Sparsity(share))
    assert torch.equal(solution.U, expected)
    assert int(solution.U.count_nonzero()) == k
    assert torch.equal(solution.bias, torch.ones(d_out))


@pytest.mark.parametrize("share", [0.0, 0.33, 0.9])
def test_over_the_layer(share):
    A, W = layer()
    k = Sparsity(share).count(W.numel())
    U = Wanda(scope="layer").prune(problem(A, W, torch.ones(W.shape[1])), Sparsity(share)).U
    scores = W.double().abs() * A.double().norm(dim=0)[:, None]
    assert int(U.count_nonzero()) == k
    assert torch.equal(U[U != 0], W[U != 0])
    if k < W.numel():
        assert scores[U != 0].min() >= scores[U == 0].max()


@pytest.mark.parametrize("k", [0, 1, 7, 13, 39, 40])
def test_ties_go_by_index(k):
    W = torch.ones(8, 5)
    U = Wanda().prune(problem(torch.ones(4, 8), W, None), Sparsity(nonzeros=k)).U
    assert [int(n) for n in U.count_nonzero(0)] == [k // 5 + (j < k % 5) for j in range(5)]
    assert torch.equal(U, U.sort(dim=0, descending=True).values)
