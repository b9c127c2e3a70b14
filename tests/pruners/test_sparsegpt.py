"""SparseGPT against its derivation: the exact inverse of what is left of H, one input after another."""

from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import correlated
from correlated import extended, problem, stacked
from feta.pruners.sparsegpt import SparseGpt
from feta.sparsity import Sparsity, top_k_mask

layer = partial(correlated.layer, d_in=11)


def unblocked(A, W, k, block, damping, bias=None):
    d_in, A, W = len(W), extended(A, bias is not None), stacked(W, bias).clone()
    H = A.t() @ A
    H.diagonal()[:d_in] += damping * H.diagonal()[:d_in].mean()
    for j in range(d_in):
        if j % block == 0:
            stop = min(j + block, d_in)
            fixed = torch.stack([torch.linalg.inv(H[i:, i:])[0, 0] for i in range(j, stop)])
            mask = top_k_mask(W[j:stop] ** 2 / fixed[:, None], k * stop // d_in - k * j // d_in)
        inverse = torch.linalg.inv(H[j:, j:])
        error = W[j].where(~mask[j % block], 0) / inverse[0, 0]
        W[j:] -= torch.outer(inverse[0], error)
        W[j] = W[j].where(mask[j % block], 0)
    return W


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(1, 16), st.sampled_from([1, 3, 5, 128]), st.floats(0, 0.999))
def test_is_the_unblocked_sweep(seed, d_in, block, share):
    A, W, b = layer(seed, d_in=d_in)
    k = Sparsity(share).count(W.numel())
    solution = SparseGpt(block=block).prune(problem(A, W, b), Sparsity(share))
    torch.testing.assert_close(solution.U, unblocked(A, W, k, block, 0.01), rtol=1e-6, atol=1e-8)
    assert int(solution.U.count_nonzero()) == k
    assert torch.equal(solution.bias, b)
    fitted = SparseGpt(block=block, fit_bias=True).prune(problem(A, W, b), Sparsity(share))
    torch.testing.assert_close(stacked(fitted), unblocked(A, W, k, block, 0.01, b), rtol=1e-6, atol=1e-8)


def test_makes_up_for_what_it_removes():
    A, W, b = layer(m=300, d_in=40, d_out=20)
    U = SparseGpt().prune(problem(A, W, b), Sparsity(0.5)).U
    kept_as_they_were = W.where(U != 0, 0)
    assert (A @ (U - W)).norm() < 0.8 * (A @ (kept_as_they_were - W)).norm()


def test_blocks_share_the_count():
    A, W, b = layer(d_in=10)
    U = SparseGpt(block=4).prune(problem(A, W, b), Sparsity(nonzeros=13)).U
    assert [int(part.count_nonzero()) for part in U.split(4)] == [5, 5, 3]
