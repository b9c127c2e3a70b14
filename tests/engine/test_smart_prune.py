"""smart_prune says what its answer is worth, in every precision, and layers of a network are held to the same."""

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import correlated
import feta
from feta import LayerProblem, LayerSolution, Needs, Sparsity
from feta.errors import DataError
from feta.pruners import METHODS
from feta.sparsity import top_k_mask

QUICK = {"net-trim": {"iterations": 60, "search_steps": 3}, "feta-svrg": {"outer": 2, "search_steps": 4}}
A, W, BIAS = (tensor.float() for tensor in correlated.relu_layer(0, 80, 10, 6))
B = torch.relu(A @ W + BIAS)


def giving(make_u, **needs):
    """A method whose answer is made of the problem's weights."""

    @dataclass(frozen=True)
    class Given:
        name: ClassVar[str] = "given"
        needs: ClassVar[Needs]

        def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
            return LayerSolution(make_u(problem.W, target.count(problem.W.numel())), problem.bias)

    Given.needs = Needs(**needs)
    return Given()


def smallest(weights: Tensor, keep: int) -> Tensor:
    return weights.where(top_k_mask(-weights.abs(), keep), 0)


def largest(weights: Tensor, keep: int) -> Tensor:
    return weights.where(top_k_mask(weights.abs(), keep), 0)


def test_an_answer_that_thresholding_beats_is_not_ok():
    found = feta.smart_prune(W, A, B, sparsity=0.5, method=giving(smallest), bias=BIAS)
    assert found.status == "poor"
    assert "thresholding has" in found.message
    assert torch.equal(found.U, smallest(W, 30))


def test_a_safe_method_gives_thresholding_instead():
    found = feta.smart_prune(W, A, B, sparsity=0.5, method=giving(smallest, safe=True), bias=BIAS)
    assert found.status == "fell-back"
    assert "thresholded instead" in found.message
    assert torch.equal(found.U, largest(W, 30))
    assert torch.equal(found.bias, BIAS)


def test_thresholding_is_not_measured_by_itself_but_by_the_outputs():
    assert feta.smart_prune(W, A, B, sparsity=0.9, method="threshold", bias=BIAS).status == "ok"
    assert feta.smart_prune(W, A, B, sparsity=0.9, method="threshold", bias=BIAS + 100).status == "poor"


def test_an_empty_answer_is_not_ok():
    """Whole rows of six weights, of which none fits into five."""
    options = {"regulariser": "rows", **QUICK["feta-svrg"]}
    target = Sparsity(nonzeros=5)
    found = feta.smart_prune(W, A, B, sparsity=target, method="feta-svrg", options=options)
    assert not found.U.any()
    assert found.status != "ok"
    assert found.message
    zeros = giving(lambda W, k: W * 0, count="most")
    found = feta.smart_prune(W, A, B + 1, sparsity=target, method=zeros, bias=BIAS)
    assert found.status == "poor"
    linear = feta.smart_prune(W, A, A @ W, sparsity=target, method=zeros, activation="linear")
    assert linear.status == "poor"
    nothing = feta.smart_prune(W * 0, A, B * 0, sparsity=target, method=zeros)
    assert nothing.status == "ok"


def test_an_empty_layer_does_not_end_the_run():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    data = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = feta.prune(
            model, data, 0.9, "feta-svrg", layers="0", options={"regulariser": "rows", **QUICK["feta-svrg"]}
        )
    (layer,) = result.report.layers
    assert layer.nonzeros == 0
    assert layer.status == "poor"
    assert layer.message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_half_precision(method, dtype):
    """Half the weights are near the end of float16's range, below and above."""
    small = W.clone()
    small[:, :3] *= 1e-6
    given = [tensor.to(dtype) for tensor in (small, A, torch.relu(A @ small + BIAS), BIAS)]
    before = [tensor.clone() for tensor in given]
    found = feta.smart_prune(*given[:3], sparsity=0.5, method=method, bias=given[3], options=QUICK.get(method))
    assert found.U.dtype == found.bias.dtype == dtype
    assert int(found.U.count_nonzero()) == 30
    assert found.U.isfinite().all()
    assert all(map(torch.equal, before, given))
    exact = feta.smart_prune(*(x.float() for x in before[:3]), sparsity=0.5, method=method, bias=before[3].float())
    wrong = [(torch.relu(A @ s.U.float() + s.bias.float()) - B).norm() for s in (found, exact)]
    assert method in QUICK or wrong[0] <= 1.1 * wrong[1] + 0.05 * B.norm()


def test_weights_that_half_precision_cannot_hold():
    """Written into the layer they would be infinite, or zero and one too few."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).half()
    odd = giving(lambda W, k: largest(W, k) * torch.where(torch.arange(8) % 2 == 0, 1e9, 1e-9))
    data = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)).half()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = feta.prune(model, data, 0.5, odd, layers="0")
    assert result.model[0].weight.isfinite().all()
    assert result.report.layers[0].nonzeros == 24
    assert result.report.layers[0].status == "poor"


@pytest.mark.parametrize("name", ["A", "B"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(name, value):
    given = {"A": A.clone(), "B": B.clone()}
    given[name][3, 2] = value
    with pytest.raises(DataError, match=f"{name} must be finite, got NaN or infinite"):
        feta.smart_prune(W, **given, method="threshold")


def test_outputs_whose_squares_leave_float32():
    """They are finite, and were refused as infinite."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight *= 1e12
    data = 1e12 * torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    for method in ("threshold", "alps", "feta"):
        (layer,) = feta.prune(model, data, 0.3, method, layers="0").report.layers
        assert layer.relative_error < 1


def test_outputs_without_weights_leave_their_share_to_others():
    """Wanda gives every output as many; where an output has fewer, the count of the layer stays exact."""
    sparse = W.clone()
    sparse[:, 0] = 0
    sparse[4:, 1] = 0
    found = feta.smart_prune(sparse, A, B, sparsity=Sparsity(nonzeros=37), method="wanda")
    assert int(found.U.count_nonzero()) == 37
    assert int(feta.smart_prune(sparse, A, B, sparsity=Sparsity(nonzeros=1), method="wanda").U.count_nonzero()) == 1


@pytest.mark.parametrize("method", ["alps", "exact-obs", "feta", "lobs", "net-trim", "sparsegpt"])
def test_the_count_is_exact_where_inputs_say_nothing(method):
    """Most weights are zero already, and all inputs: any choice is as good, but zeros are no weights."""
    sparse = W.where(W.abs() > 0.5, 0)
    keep = int(sparse.count_nonzero()) // 2
    for data in (A * 0, A[:1].expand(80, -1).contiguous()):
        target = Sparsity(nonzeros=keep)
        found = feta.smart_prune(sparse, data, torch.relu(data @ sparse), sparsity=target, method=method)
        assert int(found.U.count_nonzero()) == keep


@pytest.mark.parametrize("method", ["lobs", "sparsegpt", "exact-obs"])
def test_a_status_comes_with_a_message(method):
    doubled = A[:, torch.arange(10) // 2].contiguous()
    found = feta.smart_prune(
        W, doubled, torch.relu(doubled @ W), method=method, sparsity=0.5, options={"damping": 0.0}
    )
    assert found.status != "ok"
    assert found.message
