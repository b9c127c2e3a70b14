"""LOBS against the double loop of its paper, weight by weight."""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st

import correlated
from correlated import extended, problem, stacked
from feta.pruners.lobs import Lobs, removal_turns, remove
from feta.sparsity import Sparsity

F64 = torch.float64
layer = partial(correlated.layer, d_in=10, d_out=6, mean=0.0)


def slow(A, W, b, keep, damping):
    d_in, A, W = len(W), extended(A, b is not None), stacked(W, b)
    inverse = torch.linalg.inv(A.t() @ A / len(A) + damping * torch.eye(len(W), dtype=F64))
    cost = {(i, j): float(W[i, j] ** 2 / inverse[i, i] / 2) for i in range(d_in) for j in range(W.shape[1])}
    order = sorted(cost, key=lambda place: (cost[place], -place[0], -place[1]))
    V, gone = W.clone(), torch.zeros_like(W, dtype=torch.bool)
    for q, j in order[: len(order) - keep]:
        V[:, j] -= V[q, j] / inverse[q, q] * inverse[:, q]
        gone[q, j] = True
        V[gone] = 0
    return V


@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 9), st.floats(0, 0.999), st.booleans())
def test_is_the_double_loop(seed, d_in, d_out, share, bias):
    A, W, b = layer(seed, d_in=d_in, d_out=d_out)
    b = b if bias else None
    keep = Sparsity(share).count(W.numel())
    solution = Lobs(damping=1e-3).prune(problem(A, W, b), Sparsity(share))
    torch.testing.assert_close(stacked(solution), slow(A, W, b, keep, 1e-3), rtol=1e-6, atol=1e-8)
    assert int(solution.U.count_nonzero()) == keep


def test_blocks_of_steps_do_not_matter():
    A, W, _ = layer(d_in=40, d_out=5)
    inverse = torch.linalg.inv(A.t() @ A + torch.eye(40, dtype=F64))
    turn = removal_turns(W.square() / inverse.diagonal()[:, None], 30)
    whole = remove(inverse, W, turn)
    for block in (1, 7, 40):
        torch.testing.assert_close(remove(inverse, W, turn, block), whole)


def test_turns_are_ranks_with_ties_by_index():
    sensitivity = torch.tensor([[3.0, 1.0], [1.0, 2.0], [1.0, 5.0]])
    assert removal_turns(sensitivity, 2).tolist() == [[-1, 2], [1, 3], [0, -1]]


def test_one_removal_is_optimal():
    """The first step of OBS is exact: no other change of that output does better without the weight."""
    A, W, b = layer(d_out=1)
    solution = Lobs(damping=0).prune(problem(A, W, b), Sparsity(nonzeros=9))
    keep = stacked(solution)[:, 0] != 0
    best = torch.linalg.lstsq(extended(A)[:, keep], A @ W + b).solution
    torch.testing.assert_close(stacked(solution)[keep], best)
