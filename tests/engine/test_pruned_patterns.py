"""Whole networks in patterns: every layer holds it, by every method that can, through fits too; what is refused."""

import json
from itertools import product

import pytest
import torch
from torch import nn

import feta
from feta.errors import ConfigError, ModelError
from feta.layers import LayerView
from feta.patterns import parse_pattern
from feta.problem import LayerSolution, Needs
from feta.pruners import METHODS, make
from nets import mlp

X = torch.randn(60, 12, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(24, 4, 6, 6, generator=torch.Generator().manual_seed(2))
ABLE = [name for name in METHODS if make(name).needs.patterns]
DENSE = {"2:4": None, "1:3": None, "4x1": 0.75, "4x2": 0.5, "neurons": 0.5}


def convolutions(norm=True, bias=False):
    """A plain, a grouped, a depthwise and a 1 x 1 convolution, and a head."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(4, 8, 3, bias=bias), nn.Conv2d(8, 12, 3, groups=2, bias=bias)]
    parts += [nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=bias), nn.Conv2d(12, 8, 1, bias=bias)]
    norms = [nn.BatchNorm2d(part.out_channels) if norm else nn.Identity() for part in parts]
    layers = [layer for part, norm in zip(parts, norms, strict=True) for layer in (part, norm, nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 3)).eval()


def holds(model, layer) -> bool:
    """Whether a layer's zeros are those of the pattern in its report, with the count it says."""
    view = LayerView.of(model, layer.name)
    pattern, alive = parse_pattern(layer.pattern).over(view.taps), view.flat(view.weight != 0)
    assert layer.nonzeros == int(alive.sum())
    return all(torch.equal(pattern.mask(part.float(), int(part.sum())), part) for part in alive.chunk(view.groups, 1))


@pytest.mark.parametrize(("method", "text"), list(product(ABLE, DENSE)))
def test_every_layer_holds_the_pattern(method, text):
    model = mlp(12, 8, 12, 3)
    before = [parameter.clone() for parameter in model.parameters()]
    result = feta.prune(model, X, DENSE[text], method, pattern=text)
    expected = {"2:4": [48, 48], "1:3": [32, 36], "4x1": [24, 24], "4x2": [48, 48], "neurons": [48, 48]}[text]
    assert [layer.nonzeros for layer in result.report.layers] == expected
    assert all(holds(result.model, layer) for layer in result.report.layers)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_layer_that_m_does_not_divide_keeps_its_share_of_the_rest():
    result = feta.prune(mlp(6, 7, 4, 3), X[:, :6], None, "wanda", pattern="2:4")
    # Of 6 inputs two of four and one of two; of 7 two of four and two of three.
    assert [layer.nonzeros for layer in result.report.layers] == [7 * 3, 4 * 4]
    assert all(holds(result.model, layer) for layer in result.report.layers)


@pytest.mark.parametrize(("method", "norm", "bias"), [(m, n, not n) for m, n in product(ABLE, (True, False))])
def test_convolutions_hold_it_along_the_channels_of_a_tap(method, norm, bias):
    model = convolutions(norm, bias)
    result = feta.prune(model, IMAGES, method=method, pattern="2:4", layers=["0", "3", "6", "9"])
    assert all(holds(result.model, layer) for layer in result.report.layers)
    # Two of four channels; of the depthwise one's single channel nothing can go.
    assert [layer.nonzeros for layer in result.report.layers] == [144, 216, 108, 48]
    assert (result.model[0].weight != 0).sum(1).unique().tolist() == [2]
    assert ["all weights stay" in layer.message for layer in result.report.layers] == [False, False, True, False]


@pytest.mark.parametrize("text", ["1x2", "2x1", "channels"])
def test_blocks_of_convolutions(text):
    names = ["0", "3", "9"]
    result = feta.prune(convolutions(), IMAGES, 0.5, "feta", pattern=text, layers=names)
    assert all(holds(result.model, layer) for layer in result.report.layers)
    assert [layer.nonzeros for layer in result.report.layers] == [144, 216, 48]


def test_half_precision_and_a_budget_that_is_spread():
    model = mlp(12, 8, 12, 3).half()
    for text, how in (("2:4", {}), ("4x1", {"allocation": "global-magnitude"}), ("1x4", {"allocation": "erk"})):
        share = None if text == "2:4" else 0.5
        result = feta.prune(model, X.half(), share, "wanda", pattern=text, **how)
        assert all(holds(result.model, layer) for layer in result.report.layers)
        assert result.report.sparsity == pytest.approx(0.5, abs=0.03)  # whole blocks in each layer


@pytest.mark.parametrize("text", ["2:4", "4x1", "neurons"])
def test_an_effort_holds_it_to_the_end(text):
    model = mlp(12, 8, 12, 3)
    result = feta.prune(model, X, None if text == "2:4" else 0.5, pattern=text, seconds=3)
    report = result.report
    assert "moving support" in [stage.name for stage in report.stages]
    assert all(holds(result.model, layer) for layer in report.layers)
    assert (report.pattern, json.loads(report.to_json())["layers"][0]["pattern"]) == (text, text)
    assert f"feta, pattern {text}: " in repr(result)


def test_a_moving_support_that_is_asked_for_holds_it():
    for model, data in ((mlp(12, 8, 12, 3), X), (convolutions(), IMAGES)):
        names = ["fc1", "fc2"] if data is X else ["0", "3", "6"]
        moving = feta.Refinement(60, "moving", learning_rate=1e-3)
        result = feta.prune(model, data, method="wanda", pattern="2:4", refine=moving, layers=names)
        assert result.report.refinement.support == "moving"
        assert all(holds(result.model, layer) for layer in result.report.layers)


@pytest.mark.parametrize("method", ["threshold", "wanda", "sparsegpt"])
def test_outputs_that_are_gone_are_silent(method):
    """Where no bias is fitted, a removed output gives zero behind the batch-norm and the ReLU."""
    result = feta.prune(convolutions(), IMAGES, 0.5, method, pattern="channels", layers="0")
    gone = ~(result.model[0].weight != 0).flatten(1).any(1)
    assert int(gone.sum()) == 4
    seen = result.model[:3](IMAGES)
    torch.testing.assert_close(seen[:, gone], torch.zeros_like(seen[:, gone]), atol=1e-5, rtol=0)
    assert bool(seen[:, ~gone].any())


def test_a_removed_output_of_a_fit_gives_its_best_constant():
    model = mlp(12, 8, 12, 3)
    result = feta.prune(model, X, 0.5, "alps", pattern="neurons", layers="fc1", options={"refit": "exact"})
    gone = ~(result.model.fc1.weight != 0).any(1)
    assert int(gone.sum()) == 4
    apart = (result.model.fc1.bias - model.fc1(X).mean(0))[gone].detach().abs().max()
    assert float(apart) < 0.3  # the mean over fitted rows, not over all of them


def test_one_layer_as_tensors():
    W, A = mlp(12, 8, 3).fc1.weight.detach().t(), X
    U = feta.smart_prune(W, A, torch.relu(A @ W), pattern="2:4").U
    assert torch.equal(parse_pattern("2:4").mask((U != 0).float(), 0), U != 0)
    with pytest.raises(ConfigError, match="sparsity must be given for pattern '4x1'"):
        feta.smart_prune(W, A, torch.relu(A @ W), pattern="4x1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pattern": "2-4"}, "pattern must be N:M with 0 < N < M such as '2:4'"),
        ({"pattern": "4x1"}, "sparsity must be given for pattern '4x1', which does not say how much stays, got none"),
        ({"pattern": "2:4", "sparsity": 0.9}, "sparsity must be 0.5 for pattern '2:4', or left out, got 0.9"),
        ({"pattern": "1:4", "sparsity": {"fc1": 0.5}}, "sparsity must be 0.75 for pattern '1:4', or left out, got"),
        ({"pattern": "2:4", "allocation": "erk"}, "allocation must be uniform for pattern '2:4', .* got 'erk'"),
        (
            {"pattern": "2:4", "method": "corenet"},
            r"method must be one of \['feta', .*\] for pattern '2:4', got 'cor",
        ),
        ({"pattern": "5x1", "sparsity": 0.5}, "layer 'fc1': pattern '5x1' must fill a layer .* 8 outputs x 12 in"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(ConfigError, match=message):
        feta.prune(mlp(12, 8, 12, 3), X, **{"method": "threshold"} | given)


def test_a_share_that_says_the_same_is_taken():
    for text, share in (("2:4", 0.5), ("1:3", 0.667), ("1:4", {"fc1": 0.75})):
        result = feta.prune(mlp(12, 8, 12, 3), X, share, "threshold", pattern=text)
        assert all(holds(result.model, layer) for layer in result.report.layers)


def test_a_method_that_breaks_the_pattern_is_named():
    class Careless:
        name, needs = "careless", Needs(patterns=True)

        def prune(self, problem, target):
            mask = feta.Sparsity(nonzeros=target.count(problem.W.numel())).mask(problem.W.abs())
            return LayerSolution(problem.W.where(mask, 0), problem.bias)

    with pytest.raises(ModelError, match="layer 'fc1': method 'careless' must keep to the pattern '2:4'"):
        feta.prune(mlp(12, 8, 12, 3), X, method=Careless(), pattern="2:4")
