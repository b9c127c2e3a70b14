"""ExactOBS against brute force: every weight tried, every inverse explicit."""

import heapq

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from correlated import extended, layer, problem, stacked
from feta.errors import ConfigError
from feta.pruners.exact_obs import ExactObs, choose, removal_path
from feta.sparsity import Sparsity

F64 = torch.float64


def best_on(H, w, S):
    """The optimum of 1/2 (u - w)' H (u - w) on the support S, and its value."""
    u = torch.zeros_like(w)
    if S:
        u[S] = torch.linalg.solve(H[S][:, S], (H @ w)[S])
    return u, float((u - w) @ H @ (u - w)) / 2


def exhaustive_path(H, w, always=()):
    """Remove, again and again, the weight whose removal leaves the least loss after a full refit."""
    left, order, losses, value = [i for i in range(len(w)) if i not in always], [], [], 0.0
    while left:
        trials = {q: best_on(H, w, [i for i in left if i != q] + list(always))[1] for q in left}
        q = min(trials, key=trials.get)
        order.append(q)
        losses.append(trials[q] - value)
        value = trials[q]
        left.remove(q)
    return order, losses


def merged(paths, n_removed):
    """How many of each output's steps are taken when the least next loss always goes first."""
    taken = [0] * len(paths)
    heap = [(losses[0], j) for j, (_, losses) in enumerate(paths)]
    heapq.heapify(heap)
    for _ in range(n_removed):
        _, j = heapq.heappop(heap)
        taken[j] += 1
        if taken[j] < len(paths[j][1]):
            heapq.heappush(heap, (paths[j][1][taken[j]], j))
    return taken


def brute_force(A, W, k, damping, bias=None):
    d_in, always = len(W), () if bias is None else (len(W),)
    around = A if bias is None else A - A.mean(0)
    A, W = extended(A, bias is not None), stacked(W, bias)
    H = A.t() @ A
    H.diagonal()[:d_in] += damping * around.square().sum(0).mean()
    paths = [exhaustive_path(H, w, always) for w in W.t()]
    taken = merged(paths, d_in * W.shape[1] - k)
    supports = [order[t:] + list(always) for (order, _), t in zip(paths, taken, strict=True)]
    return torch.stack([best_on(H, w, S)[0] for w, S in zip(W.t(), supports, strict=True)], 1)


@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(1, 7), st.integers(1, 5), st.floats(0, 0.999), st.booleans())
def test_is_the_exhaustive_greedy_choice(seed, d_in, d_out, share, fit_bias):
    A, W, b = layer(seed, d_in=d_in, d_out=d_out)
    k = Sparsity(share).count(W.numel())
    solution = ExactObs(fit_bias=fit_bias).prune(problem(A, W, b), Sparsity(share))
    V = brute_force(A, W, k, 0.01, b if fit_bias else None)
    torch.testing.assert_close(stacked(solution), V if fit_bias else stacked(V, b), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("d_in", [5, 40, 70])
def test_paths_are_those_of_explicit_inverses(d_in):
    """Beyond one round of cutting removed inputs out."""
    A, W, _ = layer(m=150, d_in=d_in, d_out=3)
    H = A.t() @ A + torch.eye(d_in, dtype=F64)
    order, losses = removal_path(torch.linalg.inv(H), W.t())
    for j in range(3):
        w, left = W[:, j].clone(), list(range(d_in))
        for t in range(d_in):
            inverse = torch.linalg.inv(H[left][:, left])
            cost = w[left] ** 2 / inverse.diagonal() / 2
            q = int(cost.argmin())
            assert int(order[j, t]) == left[q]
            assert float(losses[j, t]) == pytest.approx(float(cost[q]), rel=1e-6)
            w[left] -= w[left[q]] / inverse[q, q] * inverse[:, q]
            w[left.pop(q)] = 0


def test_choice_follows_the_least_next_loss_and_ties_go_by_output():
    losses = torch.tensor([[3.0, 1.0, 9.0], [2.0, 4.0, 4.0], [3.0, 3.0, 3.0]])
    order = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 2, 0]])
    paths = [(row.tolist(), loss.tolist()) for row, loss in zip(order, losses, strict=True)]
    for k in range(10):
        kept = choose(order, losses, k)
        assert int(kept.sum()) == k
        assert [3 - int(n) for n in kept.sum(0)] == merged(paths, 9 - k)


@pytest.mark.parametrize("fit_bias", [True, False])
def test_batches_of_outputs_do_not_matter(fit_bias):
    A, W, b = layer(d_in=12, d_out=7)
    methods = (ExactObs(batch_bytes=n, fit_bias=fit_bias) for n in (1, 2**30))
    torch.testing.assert_close(*(method.prune(problem(A, W, b), Sparsity(0.6)).U for method in methods))


def test_without_a_bias_a_constant_input_has_a_say():
    A, W, b = layer()
    A[:, 1], A[:, 6] = 0, 3
    U = ExactObs(fit_bias=False).prune(problem(A, W, b), Sparsity(0.15)).U
    assert not U[1].any()
    assert bool(U[6].any())


def test_layers_that_are_too_large_are_refused_with_the_cost():
    A, W, b = layer()
    with pytest.raises(ConfigError, match=r"max_cost 1\.0e\+02 .* got 2\.6e\+03 for 8 x 5; raise max_cost, or use"):
        ExactObs(max_cost=100).prune(problem(A, W, b), Sparsity(0.5))


def test_what_other_layers_know_of_the_inputs_is_not_changed():
    """Layers that read the same inputs share one Gram matrix."""

    p = problem(*layer())
    known: dict = {}
    object.__setattr__(p.stream, "shared", known)
    first, second = (ExactObs().prune(p, Sparsity(0.5)) for _ in range(2))
    assert "gram" in known
    assert torch.equal(first.U, second.U)
