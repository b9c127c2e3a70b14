"""The two identities behind the Gram solver, and the two ways to read targets."""

import pytest
import torch

from correlated import extended, layer, problem
from feta.calibration.statistics import gram
from feta.problem import Activation
from feta.solvers.gram import GramSettings, GramSolve, GramSystem
from feta.solvers.targets import SampledTargets, StreamedTargets
from feta.sparsity import top_k_mask


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def case(request):
    """A problem, A~, the trained weights, and some others."""
    A, W, b = layer(2, 300, 7, 5, mean=0.0)
    given = problem(A, W, b if request.param else None, chunk_rows=64)
    V = given.trained
    other = V + 0.5 * torch.randn(V.shape, generator=torch.Generator().manual_seed(2), dtype=V.dtype)
    return given, extended(A, request.param), V, other


def test_targets_bound_the_objective_from_above_everywhere(case):
    given, A, _, other = case
    B = given.stream.B
    T = given.fit.targets(A @ other, B)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 0.1, 1.0, 5.0):
        V = other + scale * torch.randn(other.shape, generator=generator, dtype=other.dtype)
        assert ((A @ V).clamp_min(0) - B).square().sum() <= (A @ V - T).square().sum() + 1e-9


def test_bound_is_tight_where_no_output_has_died(case):
    given, A, _, other = case
    B = given.stream.B
    Z = A @ other
    dead = (B > 0) & (Z <= 0)
    assert dead.any()  # else the test shows nothing
    gap = (Z - given.fit.targets(Z, B)).square() - (Z.clamp_min(0) - B).square()
    torch.testing.assert_close(gap[~dead], torch.zeros_like(gap[~dead]))
    assert (gap[dead] > 0).all()
    # The DC slope leaves dead outputs where they are: no error is asked of them, so it is a tangent there.
    tangent = given.fit.targets(Z, B, revive=False)
    torch.testing.assert_close(tangent[dead], Z[dead])


def test_streamed_targets_against_the_whole_matrix(case):
    given, A, _, other = case
    B = given.stream.B
    value, C = StreamedTargets(given).at(other)
    assert value == pytest.approx(float(((A @ other).clamp_min(0) - B).square().sum()) / len(A))
    torch.testing.assert_close(C, A.t() @ given.fit.targets(A @ other, B))


def test_a_sample_of_all_rows_is_the_stream(case):
    given, _, _, other = case
    sampled = SampledTargets(given, gram(given.rows, with_bias=given.bias is not None), 10**6)
    streamed = StreamedTargets(given)
    for revive in (True, False):
        (value, C), (expected, D) = sampled.at(other, revive=revive), streamed.at(other, revive=revive)
        assert value == pytest.approx(expected)
        torch.testing.assert_close(C, D)


def test_a_small_sample_is_exact_at_the_trained_weights(case):
    """T = A~ W~ there, whatever the sample: nothing is left to estimate."""
    given, _, V, _ = case
    statistics = gram(given.rows, with_bias=given.bias is not None)
    sampled = SampledTargets(given, statistics, 20)
    assert sum(len(rows.A) for rows in sampled.held) == 20
    torch.testing.assert_close(sampled.at(V)[1], StreamedTargets(given).at(V)[1])


def test_linear_layers_have_fixed_targets(case):
    given, A, V, other = case
    reader = StreamedTargets(problem(given.stream.A, given.W, given.bias, Activation.LINEAR))
    torch.testing.assert_close(reader.at(V)[1], A.t() @ (A @ V))
    torch.testing.assert_close(reader.at(V)[1], reader.at(other)[1])


def test_refits_never_raise_the_objective(case):
    given, _, V, _ = case
    mask = top_k_mask(given.W.abs(), 12)
    H = gram(given.rows, with_bias=given.bias is not None).H
    start = torch.cat([given.W.where(mask, 0), V[len(mask) :]])
    settings = GramSettings(retargets=30, ridge=0.0)
    path = GramSolve(GramSystem(H, len(mask)), StreamedTargets(given), settings, start, mask)
    path.retarget()
    assert path.objectives == sorted(path.objectives, reverse=True)
    assert path.objectives[-1] < 0.97 * path.objectives[0]
    assert not path.V[: len(mask)][~mask].any()
