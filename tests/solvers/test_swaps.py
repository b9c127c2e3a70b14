"""Small layers: exchanges against refits of every candidate, and whole solves against brute force and the rivals."""

import itertools

import pytest
import torch

import feta
from correlated import extended, layer, relu_layer, stacked
from feta.objective.activation import Activation
from feta.objective.datafit import DataFit
from feta.solvers import relu_swaps, swaps
from feta.solvers.refit import masked_refit

F64 = torch.float64


def system(seed=0, d=12, d_out=4, bias=True):
    A, W, b = layer(seed, 200, d, d_out)
    X = extended(A, bias)
    return X.t() @ X, X.t() @ (A @ W + b).sin()


def loss(H, C, mask, worth=None):
    V = masked_refit(H, C, mask).V
    each = (V * (H @ V)).sum(0) - 2 * (C * V).sum(0)
    return float(each.sum() if worth is None else each @ worth)


def neighbours(mask):
    """All masks one exchange away."""
    for out, into in itertools.product(mask.nonzero().tolist(), (~mask).nonzero().tolist()):
        other = mask.clone()
        other[tuple(out)], other[tuple(into)] = False, True
        yield other


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_no_exchange_is_left_that_lowers_the_objective(bias, weighted):
    H, C = system(1, bias=bias)
    weights = torch.tensor([1.0, 0.2, 3.0, 1.0], dtype=F64) if weighted else None
    worth = None if weights is None else weights.square()
    start = torch.rand(12, 4, generator=torch.Generator().manual_seed(0)) < 0.3
    found = swaps.squares(H, C, start, weights)
    assert int(found.sum()) == int(start.sum())
    best = loss(H, C, found, worth)
    assert best < loss(H, C, start, worth)
    assert best <= min(loss(H, C, other, worth) for other in neighbours(found)) + 1e-7 * abs(best)


def test_few_inputs_are_solved_over_all_supports():
    H, C = system(2, d=4, d_out=3)
    start = torch.zeros(4, 3, dtype=torch.bool)
    start[:, 0], start[0, 1] = True, True
    found = swaps.squares(H, C, start)
    losses = []
    for chosen in itertools.combinations(range(12), 5):
        mask = torch.zeros(12, dtype=torch.bool)
        mask[list(chosen)] = True
        losses.append(loss(H, C, mask.reshape(4, 3)))
    assert loss(H, C, found) == pytest.approx(min(losses))


def test_equal_and_dead_inputs_do_no_harm():
    A, W, b = layer(3, 200, 12, 4)
    A[:, 3], A[:, 5] = A[:, 4], 0
    H, C = extended(A).t() @ extended(A), extended(A).t() @ (A @ W + b)
    start = torch.rand(12, 4, generator=torch.Generator().manual_seed(1)) < 0.4
    found = swaps.squares(H, C, start)
    assert int(found.sum()) == int(start.sum())
    assert not (found[3] & found[4]).any()
    assert not found[5].any()
    assert loss(H, C, found) < loss(H, C, start)


def test_layers_that_are_not_small_keep_their_mask():
    mask = torch.rand(80, 80) < 0.5
    assert swaps.squares(torch.eye(80), torch.ones(80, 80), mask) is mask


def test_candidates_after_the_relu_are_fitted_as_a_long_solve_would():
    A, W, b = relu_layer(4, 300, 6, 2)
    X, V = extended(A), stacked(W, b)
    B = torch.relu(X @ V)
    candidates = relu_swaps.Candidates(DataFit(Activation.RELU, True), X, B, V, 6)
    start = torch.zeros(6, 2, dtype=torch.bool)
    start[:2] = True
    found = candidates.improved(start)

    def error(mask):
        return sum(float(candidates.values(j, mask.t()[j : j + 1])) for j in range(2))

    assert int(found.sum()) == 4
    assert error(found) < error(start)
    assert error(found) <= min(error(other) for other in neighbours(found)) * (1 + 1e-6)


def small(seed, d_in, d_out, m=300):
    """Inputs that are correlated, rectified, or neighbours in an image; every other layer without a bias."""
    A, W, b = layer(seed, m, d_in, d_out, mean=0.0)
    if seed % 3 == 1:
        A = A.clamp_min(0) / 4
    if seed % 3 == 2:
        place = torch.stack([torch.arange(d_in) // 3, torch.arange(d_in) % 3], 1).double()
        near = torch.exp(-torch.cdist(place, place) / 2)
        noise = torch.randn(m, d_in, generator=torch.Generator().manual_seed(seed), dtype=F64)
        A = (noise @ torch.linalg.cholesky(near).t() + 0.5).clamp_min(0)
    return A, W, b / 2 if seed % 2 else None


def brute_force(A, W, b, B, keep, relu, rounds=60):
    """The least error over all masks: that of every column on every support, then the best sizes."""
    X, V = extended(A, b is not None), stacked(W, b)
    d_in, d_out = W.shape
    supports = torch.tensor(list(itertools.product([False, True], repeat=d_in)))
    always = torch.ones(len(supports), len(V) - d_in, dtype=torch.bool)
    inverse = swaps.inverses(X.t() @ X, torch.cat([supports, always], 1))
    table = torch.full((d_out, d_in + 1), torch.inf, dtype=F64)
    for j in range(d_out):
        target, least = X @ V[:, j : j + 1] if relu else B[:, j : j + 1], torch.inf
        target = target.expand(-1, len(supports))
        for _ in range(rounds if relu else 1):
            Z = X @ torch.einsum("nij,jn->in", inverse, X.t() @ target)
            error = ((Z.relu() if relu else Z) - B[:, j : j + 1]).square().sum(0)
            least = error if least is torch.inf else torch.minimum(least, error)
            target = torch.where(B[:, j : j + 1] > 0, B[:, j : j + 1], Z.clamp_max(0))
        for n in range(d_in + 1):
            table[j, n] = least[supports.sum(1) == n].min()
    sizes = (s for s in itertools.product(range(d_in + 1), repeat=d_out) if sum(s) == keep)
    return min(sum(float(table[j, n]) for j, n in enumerate(s)) for s in sizes)


def solve_error(method, A, W, b, B, relu, target):
    kind = "relu" if relu else "linear"
    found = feta.smart_prune(W, A, B, sparsity=target, method=method, activation=kind, bias=b)
    Z = extended(A, b is not None) @ stacked(found)
    return float(((Z.relu() if relu else Z) - B).square().sum() / B.square().sum().clamp_min(1e-12))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("d_in", "d_out", "keep"), [(9, 1, 3), (4, 3, 5)])
def test_solves_of_small_layers_are_as_good_as_brute_force(d_in, d_out, keep, relu):
    """50 problems of each kind: the mean error is within 5 % of the best of all supports."""
    ratios = []
    for seed in range(50):
        A, W, b = small(seed, d_in, d_out)
        Z = extended(A, b is not None) @ stacked(W, b)
        B = Z.relu() if relu else Z
        best = brute_force(A, W, b, B, keep, relu) / float(B.square().sum())
        found = solve_error("feta", A, W, b, B, relu, feta.Sparsity(nonzeros=keep))
        ratios.append((found + 1e-9) / (best + 1e-9))
    assert sum(ratios) / len(ratios) <= 1.05


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.67])
def test_depthwise_layers_are_never_behind_the_rivals(share, relu):
    for seed in range(1, 40, 2):  # those with a bias
        A, W, b = small(seed, 9, 1, m=1000)
        Z = extended(A) @ stacked(W, b)
        B = Z.relu() if relu else Z
        ours, *rivals = (solve_error(name, A, W, b, B, relu, share) for name in ("feta", "alps", "exact-obs"))
        assert ours <= min(rivals) * (1 + 1e-5) + 1e-9


def test_errors_that_are_no_numbers_are_no_reason_to_exchange():
    """Squares of large outputs leave float32; the mask stays as it is."""
    mask = torch.tensor([[True, False], [False, True], [True, False]])

    def look(columns, S):
        assert len(S), "there is a column to look at"
        unknown = torch.full((len(S), 3), torch.nan)
        return swaps.Exchanges.best(unknown, unknown, torch.full((len(S), 3, 3), torch.nan), None)

    assert torch.equal(swaps.exchanged(look, mask, torch.ones(2), 0.0), mask)
