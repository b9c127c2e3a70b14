"""Elimination of whole inputs against brute force: every cost is the least-squares error of the refitted layer."""

import itertools

import pytest
import torch

from feta.solvers.elimination import Reader, eliminate


def layer(units=5, width=1, d_out=3, rows=40, seed=0):
    torch.manual_seed(seed)
    mixing = torch.randn(units * width, units * width, dtype=torch.float64)
    A = torch.randn(rows, units * width, dtype=torch.float64) @ mixing
    W = torch.randn(units * width, d_out, dtype=torch.float64)
    return A, W, torch.arange(units * width).reshape(units, width)


def refitted_error(A, W, gone, weights=None, ridge=0.0, bias=None):
    """The error by a plain least-squares solve on the inputs that are left, the bias refitted too."""
    weights = torch.ones(W.shape[1], dtype=torch.float64) if weights is None else weights.double()
    X, V = A, W
    if bias is not None:
        X, V = torch.cat([A, A.new_ones(len(A), 1)], 1), torch.cat([W, bias[None]])
    left = [i for i in range(X.shape[1]) if i not in gone]
    H = X.t() @ X
    r = ridge * float(H.diagonal().mean())
    U = torch.zeros_like(V)
    pulled = H[left][:, left] + r * torch.eye(len(left), dtype=torch.float64)
    U[left] = torch.linalg.solve(pulled, (H @ V)[left] + r * V[left])
    D = (U - V) * weights
    return float((D * (H @ D)).sum() + r * D[left].square().sum())


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_costs_and_errors_are_those_of_the_refitted_layer(width, ridge):
    A, W, rows = layer(width=width)
    weights = torch.tensor([1.0, 0.3, 2.0])
    reader = Reader.of(A.t() @ A, W, rows, weights, ridge)
    costs = reader.costs(torch.arange(5))
    for unit in range(5):
        expected = refitted_error(A, W, rows[unit].tolist(), weights, ridge)
        assert float(costs[unit]) == pytest.approx(expected, rel=1e-6)
    order, errors = eliminate([reader])
    assert len(order) == len(errors) == 4
    for count in range(1, 5):
        gone = rows[order[:count]].flatten().tolist()
        assert errors[count - 1] == pytest.approx(refitted_error(A, W, gone, weights, ridge), rel=1e-5)


def test_the_bias_is_refitted_and_never_goes():
    A, W, rows = layer()
    A, bias = A + 3, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    X = torch.cat([A, A.new_ones(len(A), 1)], 1)
    reader = Reader.of(X.t() @ X, torch.cat([W, bias[None]]), rows, ridge=0.0)
    order, errors = eliminate([reader])
    assert max(order) < 5
    for count in range(1, 5):
        expected = refitted_error(A, W, rows[order[:count]].flatten().tolist(), bias=bias)
        assert errors[count - 1] == pytest.approx(expected, rel=1e-5)


def test_the_first_to_go_is_the_best_single_unit_for_all_readers_together():
    A, W, rows = layer(units=6)
    other, weights, _ = layer(units=6, d_out=4, seed=1)
    readers = [Reader.of(A.t() @ A, W, rows, ridge=0.0), Reader.of(other.t() @ other, weights, rows, ridge=0.0)]
    order, errors = eliminate(readers)
    sums = [refitted_error(A, W, [unit]) + refitted_error(other, weights, [unit]) for unit in range(6)]
    assert order[0] == min(range(6), key=sums.__getitem__)
    assert errors[0] == pytest.approx(min(sums), rel=1e-6)


def test_units_that_others_can_stand_in_for_go_first_whatever_their_size():
    """The largest weight sits on an input that two others add up to."""
    A, W, _ = layer(units=4)
    A = torch.cat([A, A[:, :1] + A[:, 1:2]], 1)
    W = torch.cat([W, 100 * torch.ones(1, 3, dtype=torch.float64)])
    order, errors = eliminate([Reader.of(A.t() @ A, W, torch.arange(5)[:, None], ridge=1e-9)])
    assert order[0] in (0, 1, 4)
    assert errors[0] < 1e-4 * refitted_error(A, W, [2])


def test_greedy_is_not_far_from_the_best_of_all_subsets():
    worst = 0.0
    for seed in range(5):
        A, W, rows = layer(units=7, seed=seed)
        _, errors = eliminate([Reader.of(A.t() @ A, W, rows, ridge=0.0)])
        best = min(refitted_error(A, W, gone) for gone in itertools.combinations(range(7), 3))
        assert errors[2] >= best - 1e-9 * best
        worst = max(worst, errors[2] / best)
    assert worst < 2


def test_units_in_batches_have_the_exact_error_at_the_end_of_each():
    A, W, rows = layer(units=12, rows=100)
    order, errors = eliminate([Reader.of(A.t() @ A, W, rows, ridge=0.0)], least=6, at_once=4)
    assert len(order) == 6
    assert errors == sorted(errors)
    assert errors[2] == pytest.approx(refitted_error(A, W, order[:3]), rel=1e-5)  # 12 // 4 go first


def test_a_dead_input_goes_first_at_no_cost():
    A, W, rows = layer()
    A[:, 3] = 0
    order, errors = eliminate([Reader.of(A.t() @ A, W, rows)])
    assert order[0] == 3
    assert errors[0] < 1e-2 * errors[1]
