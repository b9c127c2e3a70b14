"""The two identities behind the Gram solver, and the two ways to read targets."""

import pytest
import torch

from feta.calibration.statistics import gram
from feta.calibration.stream import TensorStream
from feta.problem import Activation, LayerProblem
from feta.solvers.gram import GramSettings, GramSystem, refit_on_support
from feta.solvers.majorise import SampledTargets, StreamedTargets
from feta.sparsity import top_k_mask


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def case(request):
    generator = torch.Generator().manual_seed(2)
    A = torch.randn(300, 7, generator=generator, dtype=torch.float64)
    A = A @ torch.randn(7, 7, generator=generator, dtype=torch.float64)  # correlated: a refit has something to gain
    W = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    b = torch.randn(5, generator=generator, dtype=torch.float64) if request.param else None
    Z = A @ W if b is None else A @ W + b
    V = W if b is None else torch.cat([W, b[None]])
    other = V + 0.5 * torch.randn(V.shape, generator=generator, dtype=torch.float64)
    return LayerProblem(W, b, TensorStream(A, Z.clamp_min(0), 64)), V, other


def extended(problem):
    A = problem.stream.A
    return A if problem.bias is None else torch.cat([A, torch.ones(len(A), 1, dtype=A.dtype)], 1)


def test_targets_bound_the_objective_from_above_everywhere(case):
    problem, _, other = case
    A, B = extended(problem), problem.stream.B
    T = problem.fit.targets(A @ other, B)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 0.1, 1.0, 5.0):
        V = other + scale * torch.randn(other.shape, generator=generator, dtype=other.dtype)
        assert ((A @ V).clamp_min(0) - B).square().sum() <= (A @ V - T).square().sum() + 1e-9


def test_bound_is_tight_where_no_output_has_died(case):
    problem, _, other = case
    A, B = extended(problem), problem.stream.B
    Z = A @ other
    dead = (B > 0) & (Z <= 0)
    assert dead.any()  # else the test shows nothing
    gap = (Z - problem.fit.targets(Z, B)).square() - (Z.clamp_min(0) - B).square()
    torch.testing.assert_close(gap[~dead], torch.zeros_like(gap[~dead]))
    assert (gap[dead] > 0).all()
    # The DC slope leaves dead outputs where they are: no error is asked of them, so it is a tangent there.
    tangent = problem.fit.targets(Z, B, revive=False)
    torch.testing.assert_close(tangent[dead], Z[dead])


def test_streamed_targets_against_the_whole_matrix(case):
    problem, _, other = case
    A, B = extended(problem), problem.stream.B
    step = StreamedTargets(problem).at(other)
    Z = A @ other
    assert step.objective == pytest.approx(float((Z.clamp_min(0) - B).square().sum()) / len(A))
    torch.testing.assert_close(step.C, A.t() @ problem.fit.targets(Z, B))


def test_a_sample_of_all_rows_is_the_stream(case):
    problem, _, other = case
    sampled = SampledTargets(problem, gram(problem.rows, with_bias=problem.bias is not None), 10**6)
    streamed = StreamedTargets(problem)
    for revive in (True, False):
        a, b = sampled.at(other, revive=revive), streamed.at(other, revive=revive)
        assert a.objective == pytest.approx(b.objective)
        torch.testing.assert_close(a.C, b.C)


def test_a_small_sample_is_exact_at_the_trained_weights(case):
    """T = A~ W~ there, whatever the sample: nothing is left to estimate."""
    problem, V, _ = case
    statistics = gram(problem.rows, with_bias=problem.bias is not None)
    sampled = SampledTargets(problem, statistics, 20)
    assert sum(len(A) for A, _, _ in sampled.held) < 60
    torch.testing.assert_close(sampled.at(V).C, StreamedTargets(problem).at(V).C)


def test_linear_layers_have_fixed_targets(case):
    problem, V, other = case
    A = extended(problem)
    linear = LayerProblem(problem.W, problem.bias, TensorStream(problem.stream.A, A @ V, 64), Activation.LINEAR)
    reader = StreamedTargets(linear)
    torch.testing.assert_close(reader.at(V).C, reader.at(other).C)


def test_refits_never_raise_the_objective(case):
    problem, V, _ = case
    mask = top_k_mask(problem.W.abs(), 12)
    H = gram(problem.rows, with_bias=problem.bias is not None).H
    start = torch.cat([problem.W.where(mask, 0), V[len(mask) :]])
    settings = GramSettings(retargets=30, ridge=0.0)
    path = refit_on_support(GramSystem(H, len(mask)), StreamedTargets(problem), start, mask, settings)
    assert list(path.objectives) == sorted(path.objectives, reverse=True)
    assert path.objectives[-1] < 0.97 * path.objectives[0]
    assert not path.V[: len(mask)][~mask].any()
