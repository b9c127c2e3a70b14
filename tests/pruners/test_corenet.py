"""Corenet: sensitivities against a slow loop, the unbiased draw, then the method."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from correlated import problem
from feta.problem import Activation, Status
from feta.pruners.corenet import Corenet, draws_per_part, ranking, sample_part, sensitivities
from feta.sparsity import Sparsity


def layer(m=50, d_in=12, d_out=6, *, signed=False, chunk=16):
    g = torch.Generator().manual_seed(0)
    A = torch.randn(m, d_in, generator=g, dtype=torch.float64)
    W = torch.randn(d_in, d_out, generator=g, dtype=torch.float64)
    b = 0.1 * torch.randn(d_out, generator=g, dtype=torch.float64)
    return problem(A if signed else A.clamp(min=0), W, b, chunk_rows=chunk)


def slow_sensitivities(A, W):
    s = torch.zeros_like(W)
    for x in A:
        for a in (x.clamp(min=0), (-x).clamp(min=0)):
            for o in range(W.shape[1]):
                for sign in (1, -1):
                    shares = a * (sign * W[:, o]).clamp(min=0)
                    if shares.sum() > 0:
                        s[:, o] = torch.maximum(s[:, o], shares / shares.sum())
    return s


def distributions(s, W):
    """q (2 d_out, d_in) and the sums of s, positive parts first."""
    parts = torch.cat([(s * (W > 0)).t(), (s * (W < 0)).t()])
    return parts / parts.sum(1, keepdim=True).clamp(min=1e-300), parts.sum(1)


@pytest.mark.parametrize("signed", [False, True])
def test_sensitivities(signed):
    given = layer(m=15, signed=signed)
    A, W = given.stream.A, given.W
    W[:, 1] = W[:, 1].abs()  # a part with no weights
    W[3, 2] = 0
    A[:, 4] = 0
    A[7] = 0
    s = sensitivities(A, W)
    torch.testing.assert_close(s, slow_sensitivities(A, W))
    assert not s[4].any()
    assert s[3, 2] == 0
    assert s.max() <= 1


def test_sensitivities_of_tiny_and_huge_inputs_are_finite():
    W = torch.tensor([[1.0, 1e-30], [-1.0, 1e30]])
    A = torch.tensor([[1e-38, 1e-42], [0.0, 0.0], [1e30, 1e-30]])
    s = sensitivities(A, W)
    assert torch.isfinite(s).all()
    assert ((s >= 0) & (s <= 1)).all()


@pytest.mark.parametrize("signed", [False, True])
def test_draws_are_unbiased(signed):
    given = layer(signed=signed)
    A, W = given.stream.A, given.W
    q, totals = distributions(sensitivities(A, W), W)
    N = draws_per_part(q, totals, 20)
    repeats = 4000
    rng = np.random.default_rng(3)
    drawn = sample_part(W.t().repeat(2 * repeats, 1), q.repeat(repeats, 1), N.repeat(repeats), rng)
    draws = drawn.reshape(repeats, 2, *W.t().shape).sum(1).transpose(1, 2)
    for estimate, truth in ((draws, W), (draws.transpose(1, 2) @ A[:10].t(), (A[:10] @ W).t())):
        error = (estimate.mean(0) - truth) / (estimate.std(0) / repeats**0.5).clamp(min=1e-12)
        assert error.abs().max() < 4.5
        assert error.square().mean() < 1.5


def test_variance_is_that_of_multinomial_draws():
    w, q = torch.tensor([[1.0, 2.0, 4.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    N = torch.full((20000,), 5)
    draws = sample_part(w.expand(20000, 3), q.expand(20000, 3), N, np.random.default_rng(0))
    torch.testing.assert_close(draws.var(0), w**2 * (1 - q) / (5 * q), rtol=0.05, atol=0)
    torch.testing.assert_close((draws * 5 * q / w).sum(1), N.double())


def test_parts_without_a_distribution_draw_nothing():
    w, q = torch.ones(2, 3).double(), torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).double()
    drawn = sample_part(w, q, torch.tensor([7, 10**12]), np.random.default_rng(0))
    assert not drawn[0].any()
    torch.testing.assert_close(drawn[1], torch.tensor([1.0, 1.0, 0.0]).double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("keep", [15, 30, 60])
def test_expected_number_of_distinct_draws(keep):
    given = layer(d_in=20, d_out=5)
    q, totals = distributions(sensitivities(given.stream.A, given.W), given.W)
    N = draws_per_part(q, totals, keep)
    expected = float((1 - (1 - q) ** N[:, None]).sum())
    assert expected == pytest.approx(keep, rel=0.1)
    assert (N - (N / totals).mean() * totals).abs().max() <= 1  # in proportion to the sum of s, but for rounding
    rng = np.random.default_rng(0)
    seen = [int(sample_part(torch.ones_like(q), q, N, rng).count_nonzero()) for _ in range(300)]
    assert np.mean(seen) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.9, 0.95, 0.99, 0.9999])
@pytest.mark.parametrize("signed", [False, True])
def test_no_weight_changes_its_sign(share, signed):
    given = layer(d_in=40, d_out=10, signed=signed)
    solution = Corenet().prune(given, Sparsity(share))
    assert int(solution.U.count_nonzero()) == Sparsity(share).count(400)
    assert solution.status is Status.OK
    assert (solution.U * given.W >= 0).all()


def test_seeds_matter():
    first, other = (Corenet(seed=seed).prune(layer(d_in=40, d_out=10), Sparsity(0.8)).U for seed in (0, 1))
    assert not torch.equal(first, other)


def test_only_the_sample_is_looked_at_and_it_does_not_depend_on_chunks():
    one, many = (Corenet(sample_size=30).prune(layer(m=400, chunk=n), Sparsity(0.5)) for n in (400, 7))
    torch.testing.assert_close(one.U, many.U)
    assert one.stats["sample"] == many.stats["sample"] == 30
    assert Corenet(sample_size=1000).prune(layer(m=400), Sparsity(0.5)).stats["sample"] == 400


def silent_layer(activation=Activation.RELU):
    """Output 0 is silent with a positive bias, output 1 with a negative one."""
    given = layer()
    W, b = given.W, given.bias
    W[:, :2] = -W[:, :2].abs() - 1
    b[0], b[1] = 0.2, -0.2
    return problem(given.stream.A + 0.1, W, b, activation)


def test_silent_neurons_are_removed():
    given = silent_layer()
    solution = Corenet().prune(given, Sparsity(0.5))
    assert solution.stats["removed_neurons"] == 2
    assert not solution.U[:, :2].any()
    assert solution.bias[:2].tolist() == [0.0, -0.2]
    assert torch.equal(solution.bias[2:], given.bias[2:])
    assert int(solution.U.count_nonzero()) == 36
    assert not torch.relu(given.stream.A @ solution.U + solution.bias)[:, :2].any()


def test_silent_neurons_stay_without_removal_and_on_linear_layers():
    given = silent_layer()
    kept = Corenet(neuron_removal=False).prune(given, Sparsity(0.5))
    assert kept.U[:, :2].any()
    assert torch.equal(kept.bias, given.bias)
    linear = Corenet().prune(silent_layer(Activation.LINEAR), Sparsity(0.5))
    assert linear.stats["removed_neurons"] == 0


def test_room_is_filled_by_size_and_with_removed_neurons_last():
    given = silent_layer()
    solution = Corenet().prune(given, Sparsity(nonzeros=given.W.numel() - 3))
    missing = (solution.U == 0).nonzero()
    assert len(missing) == 3
    assert (missing[:, 1] < 2).all()
    torch.testing.assert_close(solution.U.where(solution.U != 0, given.W), given.W)
    assert torch.equal(solution.bias, given.bias)  # both neurons have weights again


def test_ranking():
    W = torch.tensor([[1.0, -9.0, 2.0, 0.0, 3.0, 4.0]])
    s = torch.tensor([[0.1, 0.2, 0.0, 0.0, 0.3, 0.0]]).double()
    drawn = torch.tensor([[True, False, False, False, False, False]])
    removed = torch.tensor([False, False, False, False, False, True])
    order = ranking(W, s, drawn, removed).argsort(descending=True)[0]
    assert order.tolist() == [0, 4, 1, 2, 5, 3]


def test_weights_that_are_zero_already_are_not_counted():
    given = layer()
    W = given.W.where(given.W.abs() > 0.8, 0)
    target = Sparsity(nonzeros=int(W.count_nonzero()))
    assert torch.equal(Corenet().prune(replace(given, W=W), target).U, W)
