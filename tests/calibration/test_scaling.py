"""A layer at any scale gives the answer it has at an ordinary one."""

import pytest
import torch
from torch import nn

import correlated
import feta
from feta.calibration.scaling import Scale, ScaledStream, exactly, extreme_scale
from feta.calibration.stream import TensorStream
from feta.problem import Activation, LayerProblem
from feta.pruners import METHODS, make
from feta.sparsity import Sparsity

QUICK = {"net-trim": {"iterations": 60, "search_steps": 3}, "feta-svrg": {"outer": 2, "search_steps": 4}}


def at_scale(a: int, w: int, method: str, activation: Activation = Activation.RELU, **options):
    """A small float32 layer with inputs times 2^a and weights times 2^w, pruned; the answer as at scale 1."""
    A, W, b = (tensor.float() for tensor in correlated.relu_layer(0, 60, 8, 5))
    problem = LayerProblem(W, b, TensorStream(A, activation(A @ W + b)), activation)
    seen = Scale(a, w).seen(problem)
    A, B = (torch.cat(parts) for parts in zip(*seen.rows.chunks(), strict=True))
    options = options or QUICK.get(method)
    keep = {"sparsity": 0.6, "method": method, "activation": activation.value, "options": options}
    found = feta.smart_prune(seen.W, A, B, bias=seen.bias, **keep)
    return Scale(a, w).back(found)


@pytest.mark.parametrize("method", METHODS)
def test_scales_far_from_ordinary_do_not_matter(method):
    first, *others = (at_scale(a, w, method) for a, w in ((40, -60), (-83, 70), (-83, 20), (60, 30)))
    assert first.U.any()
    for other in others:
        assert torch.equal(first.U, other.U)
        assert torch.equal(first.bias, other.bias)
        assert first.status == other.status


def test_an_activation_that_bends_is_seen_at_the_scale_of_its_outputs():
    ordinary, tiny = (at_scale(a, -a, "feta", Activation.GELU) for a in (0, -83))
    torch.testing.assert_close(tiny.U, ordinary.U, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("quality", ["default", "best"])
def test_tiny_inputs_with_weights_to_match_in_a_network(quality):
    """Inputs of 1e-25: products in float32 are nothing, and the best quality answered with an error of thousands."""
    A, W, b = (tensor.float() for tensor in correlated.relu_layer(0, 200, 12, 6))
    errors = []
    for power in (0, -83):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 2))
        with torch.no_grad():
            model[0].weight.copy_(exactly(W, -power).t())
            model[0].bias.copy_(b)
        found = feta.prune(model, exactly(A, power), 0.6, "feta", layers="0", options={"quality": quality})
        assert found.report.layers[0].status == "ok"
        errors.append(found.report.layers[0].relative_error)
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


@pytest.mark.parametrize("search", ["error", "constraint"])
@pytest.mark.parametrize("powers", [(0, 9), (0, -15), (9, 0), (-12, 0), (-30, 12)], ids=str)
def test_net_trim_does_not_depend_on_the_scale(search, powers):
    A, W, b = correlated.relu_layer(0, 200, 20, 12)
    problem, errors = correlated.problem(A, W, b, chunk_rows=200), []
    for scale in (Scale(), Scale(*powers)):
        seen = scale.seen(problem)
        found = scale.back(make("net-trim", {"search": search}).prune(seen, Sparsity(0.7)))
        assert int(found.U.count_nonzero()) == 72
        errors.append(float((problem.activation(A @ found.U + found.bias) - problem.stream.B).norm()))
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


def test_net_trim_beside_a_bias_that_dwarfs_the_weights():
    W, bias, A = torch.full((3, 2), 1e-37), torch.tensor([0.4, -0.2]), torch.full((9, 3), 1e-6)
    found = feta.smart_prune(W, A, torch.relu(A @ W + bias), sparsity=0.5, method="net-trim", bias=bias)
    assert found.U.isfinite().all()
    torch.testing.assert_close(found.bias.relu(), bias.relu())


def test_net_trim_reports_norms_at_the_scale_of_the_layer():
    problem = correlated.problem(*correlated.relu_layer(0, 200, 20, 12), chunk_rows=200)
    found = make("net-trim").prune(problem, Sparsity(0.7))
    wrong = problem.stream.A @ found.U + found.bias - problem.stream.B
    assert found.stats["misfit"] == pytest.approx(float(wrong[problem.stream.B > 1e-6].norm()), rel=1e-6)
    assert found.stats["relative_epsilon"] == pytest.approx(found.stats["epsilon"] / float(problem.stream.B.norm()))


def test_the_scale_of_a_layer():
    def scale(inputs: float, weights: float, bias: float = 0.0, activation: Activation = Activation.RELU) -> Scale:
        W, b, A = torch.full((2, 2), weights), torch.full((2,), bias), torch.full((3, 2), inputs)
        return extreme_scale(LayerProblem(W, b, TensorStream(A, activation(A @ W + b)), activation))

    assert scale(1.0, 1.0) == scale(1e-5, 1e5) == scale(0.0, 0.0) == Scale()
    assert scale(2.0**-80, 1.5) == Scale(79, 0)
    assert scale(2.0**-80, 2.0**60) == Scale(79, -61)
    assert scale(2.0**-80, 1.5, activation=Activation.GELU) == Scale(79, -79)
    # A bias that is huge beside the products keeps the outputs from being raised along with them.
    assert scale(2.0**-80, 1.5, bias=2.0**60).outputs <= -20


def test_a_scaled_stream_is_the_stream_scaled():
    A, B = torch.randn(7, 3), torch.randn(7, 2)
    stream = ScaledStream(TensorStream(A, B, 4, R=B, rho=Activation.RELU), Scale(3, -5))
    assert stream.n_rows == 7
    assert torch.equal(torch.cat(list(stream.inputs())), 8 * A)
    rows = [torch.cat(parts) for parts in zip(*stream.rows(), strict=True)]
    assert all(map(torch.equal, rows, (8 * A, B / 4, B / 4)))
    assert torch.equal(torch.cat([part for _, part in stream.chunks()]), B.relu() / 4)
    held = stream.sampled(100)
    assert all(map(torch.equal, (held.A, held.B, held.R), (8 * A, B / 4, B / 4)))
    assert held.rho is stream.rho is Activation.RELU


def test_nothing_is_lost_on_the_way_back():
    """Weights that end below or above the range stay as near to what they are as they can."""
    W = torch.tensor([1e-30, -1e-30, 1e30, -1e30, 0.0, 3.0])
    small, large = exactly(W, -100), exactly(W, 100)
    assert torch.equal(small != 0, W != 0)
    assert torch.equal(small.sign(), W.sign())
    assert large.isfinite().all()
    assert torch.equal(exactly(large, -100)[[0, 1, 4, 5]], W[[0, 1, 4, 5]])
