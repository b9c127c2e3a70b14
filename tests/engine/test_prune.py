"""The engine: exact counts, the caller's model untouched, what each layer is shown, and every refusal."""

import copy
import functools
import json
import math
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import prune as torch_prune

import feta
import nets
from feta import ConfigError, DataError, LayerProblem, LayerSolution, ModelError, Needs, Settings, Sparsity, Status
from feta.calibration.inputs import places_of
from feta.pruners import DEFAULT_METHOD, METHODS
from feta.sparsity import top_k_mask


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nets.mlp(6, 8, 7, 3).to(dtype)


def convnet() -> nn.Sequential:
    return nets.convnet(24)


# Tests that are about the engine, not about a method, use the one whose result can be told beforehand.
thresholded = functools.partial(feta.prune, method="threshold")
X = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(9, 2, 4, 4, generator=torch.Generator().manual_seed(2))


def largest(W: torch.Tensor, k: int) -> torch.Tensor:
    return W.where(top_k_mask(W.abs(), k), 0)


def spy(passes: str = "few", act=None) -> Any:
    """A pruner that keeps what it is shown, and halves the largest weights so that networks differ."""

    @dataclass(frozen=True)
    class Spy:
        name: ClassVar[str] = "spy"
        seen: ClassVar[list[dict[str, Any]]] = []
        seed: int = 0

        def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
            A, B = (torch.cat(parts) for parts in zip(*problem.rows.chunks(), strict=True))
            kept = replace(problem, stream=None, trace=None)
            self.seen.append({"problem": kept, "target": target, "A": A, "B": B, "seed": self.seed})
            if act is not None:
                return act(problem, target)
            problem.report("fit", loss=0.5)
            return LayerSolution(largest(problem.W, target.count(problem.W.numel())) / 2, problem.bias)

    Spy.needs = Needs(passes, seed=True)
    return Spy()


def shown(model: nn.Module, data: Any, **options: Any) -> dict[str, dict[str, Any]]:
    pruner = spy()
    how = {name: options.pop(name) for name in list(options) if name in Settings.__dataclass_fields__}
    result = feta.prune(model, data, 0.5, pruner, settings=Settings(**how), **options)
    return {"result": result, **{entry["problem"].name: entry for entry in pruner.seen}}


def fitted(data: torch.Tensor) -> torch.Tensor:
    """The samples that layers are fitted to: one in ten is held out."""
    return data[places_of(len(data)) % 10 != 0]


def shrinking(scale: float) -> Any:
    """A method that only makes all weights smaller by a factor, half of them to nothing."""

    def act(problem: LayerProblem, target: Sparsity) -> LayerSolution:
        U = largest(problem.W, target.count(problem.W.numel()))
        return LayerSolution(scale * U + (1 - scale) * U.sign() * 1e-3, problem.bias)

    return spy(act=act)


def state(model: nn.Module) -> tuple[dict[str, Any], list[bool], list[int]]:
    """Weights, modes and numbers of hooks, to compare."""
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    modules = list(model.modules())
    return (
        weights,
        [m.training for m in modules],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules],
    )


# Counts, masks and reports


@given(st.integers(0, 99))
def test_counts_are_exact_and_masks_match(percent):
    model = mlp()
    result = thresholded(model, sparsity=percent / 100)
    assert list(result.masks) == ["fc1", "fc2"]
    for layer in result.report.layers:
        weight = result.model.get_submodule(layer.name).weight
        expected = Sparsity(percent / 100).count(weight.numel())
        assert layer.nonzeros == int((weight != 0).sum()) == expected
        assert torch.equal(result.masks[layer.name], weight != 0)
        assert layer.sparsity == 1 - expected / weight.numel()
        assert layer.shape == tuple(weight.shape)
    kept = sum(layer.nonzeros for layer in result.report.layers)
    assert result.report.sparsity == pytest.approx(1 - kept / (48 + 56))
    others = {name: tensor for name, tensor in result.model.state_dict().items() if name[:-7] not in result.masks}
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in others.items())


@pytest.mark.parametrize("method", ["threshold", spy(), spy("many")], ids=["threshold", "few", "many"])
def test_the_callers_model_is_untouched(method):
    model, seen = mlp(), []
    model.relu1.eval()
    model.fc1.bias.requires_grad_(False)
    model.fc2.register_forward_hook(lambda module, args, output: seen.append(1))
    before = state(model)
    result = feta.prune(model, X, 0.5, method)
    assert state(model) == before
    assert {t.data_ptr() for t in model.parameters()}.isdisjoint(t.data_ptr() for t in result.model.parameters())
    assert [m.training for m in result.model.modules()] == before[1]
    assert [p.requires_grad for p in result.model.parameters()] == [p.requires_grad for p in model.parameters()]
    assert all(p.is_leaf and p.grad is None for p in result.model.parameters())
    assert seen
    with pytest.raises(RuntimeError, match="out of luck"):
        feta.prune(model, X, 0.5, spy(act=Mock(side_effect=RuntimeError("out of luck"))))
    assert state(model) == before


def test_the_result_can_be_copied_and_read():
    result = thresholded(mlp(), X, {"fc1": 0.9, "fc2": 0.5})
    again = copy.deepcopy(result)
    assert torch.equal(again.model(X), result.model(X))
    assert again.report == result.report
    assert repr(result) == repr(result.report)
    assert "fc1" in repr(result)
    back = json.loads(result.report.to_json())
    assert back["target_sparsity"] == {"fc1": 0.9, "fc2": 0.5}
    assert [layer["nonzeros"] for layer in back["layers"]] == [5, 28]


@torch.no_grad()
def test_relative_error_is_that_of_the_definition():
    model = mlp(dtype=torch.float64)
    result = thresholded(model, X.double(), 0.7, settings=Settings(batch_size=7))
    x = y = X.double()[places_of(len(X)) % 10 == 0]  # one in ten samples is held out, and judges
    for name, layer in zip(("fc1", "fc2"), result.report.layers, strict=True):
        x, y = (F.relu(m.get_submodule(name)(v)) for m, v in ((model, x), (result.model, y)))
        assert layer.relative_error == pytest.approx(float((x - y).norm() / x.norm()), rel=1e-12)


def test_relative_errors_without_data_and_without_outputs():
    assert [layer.relative_error for layer in thresholded(mlp()).report.layers] == [None, None]
    model = mlp()
    with torch.no_grad():
        model.fc1.bias.fill_(-1000.0)  # its output is always zero
    assert thresholded(model, X, 0.5).report.layers[0].relative_error == 0.0


# What a layer is shown


@pytest.mark.parametrize("mode", ["cascade", "parallel"])
def test_inputs_are_those_of_the_mode_and_outputs_the_originals(mode):
    model = mlp()
    found, x = shown(model, X, mode=mode), fitted(X)
    source = found["result"].model if mode == "cascade" else model
    assert torch.equal(found["fc1"]["A"], x)
    torch.testing.assert_close(found["fc1"]["B"], F.relu(model.fc1(x)))
    torch.testing.assert_close(found["fc2"]["A"], F.relu(source.fc1(x)))
    torch.testing.assert_close(found["fc2"]["B"], F.relu(model.fc2(F.relu(model.fc1(x)))))
    assert torch.allclose(found["fc2"]["A"], F.relu(model.fc1(x))) == (mode == "parallel")
    assert [found[name]["problem"].cascaded for name in ("fc1", "fc2")] == [False, mode == "cascade"]


@pytest.mark.parametrize("cache", ["auto", "replay", "disk", "memory"])
@pytest.mark.parametrize("passes", ["few", "many"])
def test_every_cache_shows_the_same_and_leaves_nothing_on_disk(monkeypatch, tmp_path, cache, passes):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reference, pruner = shown(mlp(), X), spy(passes)
    result = feta.prune(mlp(), iter(X.split(20)), 0.5, pruner, settings=Settings(cache=cache))
    for entry in pruner.seen:
        torch.testing.assert_close(entry["A"], reference[entry["problem"].name]["A"])
        torch.testing.assert_close(entry["B"], reference[entry["problem"].name]["B"])
    assert torch.equal(result.model(X), reference["result"].model(X))
    assert list(tmp_path.iterdir()) == []


def test_layers_are_shown_in_order_of_execution():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.second, self.first = nn.Linear(4, 2), nn.Linear(5, 4), nn.Linear(6, 5)

        def forward(self, x):
            return self.out(F.relu(self.second(F.relu(self.first(x)))))

    assert list(shown(Backwards(), X))[1:] == ["first", "second"]


def test_activations_are_found_and_can_be_given():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    kinds = lambda **options: [  # noqa: E731
        str(entry["problem"].activation) for name, entry in shown(model, X, **options).items() if name != "result"
    ]
    assert kinds() == ["linear", "relu"]
    assert kinds(activation="relu") == ["relu", "relu"]
    assert kinds(activation={"2": "linear"}) == ["linear", "linear"]
    assert kinds(activation={"[01]": "relu"}) == ["relu", "relu"]


def test_inputs_of_every_form_reach_the_model():
    reference = shown(mlp(), X)["fc2"]["A"]
    for data in (list(X.split(20)), [(x, torch.zeros(len(x))) for x in X.split(20)], iter(X.split(7))):
        torch.testing.assert_close(shown(mlp(), data)["fc2"]["A"], reference)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, image, scale=1.0):
            return self.net(image * scale)

    found = shown(Named(), [{"image": X, "scale": torch.tensor(1.0), "labels": torch.zeros(50)}])
    assert torch.equal(found["net.fc2"]["A"], reference)


def test_n_samples_and_the_seed_choose_rows():
    drawn = [shown(mlp(), X, n_samples=20, seed=seed)["fc1"]["A"] for seed in (0, 0, 1)]
    assert all(len(A) == 18 for A in drawn)  # two of the twenty are held out
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_methods_that_ask_for_it_are_told_how_much_each_output_matters():
    pruner, plain = spy(), spy()
    type(pruner).needs = Needs(importance=True)
    model = convnet()
    for method in (pruner, plain):
        feta.prune(model, IMAGES, 0.5, method, layers=["conv2", "fc1"])
    assert [tuple(entry["problem"].output_weights.shape) for entry in pruner.seen] == [(3,), (3,), (5,)]
    assert all((entry["problem"].output_weights > 0).all() for entry in pruner.seen)
    assert [entry["problem"].output_weights for entry in plain.seen] == [None] * 3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_callback_order():
    events = []
    feta.prune(mlp(), X, 0.5, spy(), callback=events.append)
    told = [(e.kind, e.layer, e.index, e.total, e.phase, dict(e.values)) for e in events]
    step = ("fit", {"loss": 0.5})
    assert told == [
        (kind, layer, index, 2, *(step if kind == "step" else ("", {})))
        for index, layer in enumerate(("fc1", "fc2"))
        for kind in ("start", "step", "done")
    ]


def test_status_message_and_stats_reach_the_report():
    def damped(problem, target):
        U = largest(problem.W, target.nonzeros)
        return LayerSolution(U, problem.bias, Status.DAMPED, "was singular", {"n": 3})

    (first, _) = feta.prune(mlp(), X, 0.5, spy(act=damped)).report.layers
    assert (first.status, first.message, first.stats) == ("damped", "was singular", {"n": 3})


# Which layers, how sparse


def test_sparsity_per_layer_leaves_other_layers_dense():
    result = thresholded(mlp(), X, {"fc1": 0.25, "fc2": 0.75})
    assert [layer.nonzeros for layer in result.report.layers] == [36, 14]
    result = thresholded(mlp(), X, {"fc2": 0.75})
    assert list(result.masks) == ["fc2"]
    assert torch.equal(result.model.fc1.weight, mlp().fc1.weight)
    assert list(thresholded(mlp(), X, layers=["*2", "out"]).masks) == ["fc2", "out"]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_are_pruned_when_named_also_in_groups(memory_format):
    result = thresholded(convnet().to(memory_format=memory_format), IMAGES, 0.8, layers=["conv*", "fc1"])
    for layer, weights in zip(result.report.layers, (4 * 2 * 9, 6 * 2 * 9, 24 * 5), strict=True):
        assert layer.nonzeros == Sparsity(0.8).count(weights)
    kept = top_k_mask(convnet().conv2.weight.abs(), Sparsity(0.8).count(108))
    assert torch.equal(result.masks["conv2"], kept)  # groups share the layer's one threshold


def test_every_group_of_a_convolution_is_a_problem_of_its_own():
    pruner = spy()
    model = convnet()
    result = feta.prune(model, IMAGES, 0.5, pruner, layers="conv2")
    images = fitted(IMAGES)
    assert [tuple(entry["A"].shape) for entry in pruner.seen] == [(len(images) * 4, 18)] * 2
    z = F.relu(model.conv2(F.relu(model.conv1(images)))).movedim(1, -1).reshape(-1, 6)
    torch.testing.assert_close(torch.cat([entry["B"] for entry in pruner.seen], dim=1), z)
    assert result.report.layers[0].nonzeros == 54
    assert result.report.layers[0].relative_error > 0


def test_a_model_that_is_a_layer():
    with pytest.raises(ModelError, match=r"layers='\*' prunes what can be: Linear"):
        thresholded(nn.Linear(6, 4), X)
    assert thresholded(nn.Linear(6, 4), X, 0.5, layers="*").report.layers[0].nonzeros == 12


def test_attention_is_pruned_as_two_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2)).eval()
    data = torch.randn(20, 5, 8)
    found = shown(model, data)
    names = ["0.self_attn.in_proj", "0.self_attn.out_proj", "0.linear1", "0.linear2"]
    assert [layer.name for layer in found["result"].report.layers] == names
    assert found[names[0]]["A"].shape == (18 * 5, 8)
    torch.testing.assert_close(found[names[0]]["A"], fitted(data).transpose(0, 1).flatten(0, 1))
    assert str(found["0.linear1"]["problem"].activation) == "relu"
    assert int(found["result"].model[0].self_attn.in_proj_weight.count_nonzero()) == 24 * 8 // 2
    assert set(feta.masks_of(found["result"].model)) == set(names)
    same = thresholded(model, data, 0.0).model
    torch.testing.assert_close(same(data), model(data))


def test_a_shared_layer_is_pruned_once_over_all_its_rows():
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    found = shown(nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(6, 2)), X)
    assert found["0"]["A"].shape == (90, 6)
    assert found["result"].model[0] is found["result"].model[2]
    assert found["result"].report.layers[0].nonzeros == 18


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("compensate", [False, True])
def test_dtypes_are_kept(dtype, compensate):
    model = mlp(dtype=dtype)
    result = thresholded(model, X, 0.75, compensate=compensate)
    assert {p.dtype for p in result.model.parameters()} == {dtype}
    assert [layer.nonzeros for layer in result.report.layers] == [12, 14]
    kept = result.masks["fc1"]
    assert torch.equal(result.model.fc1.weight[kept], model.fc1.weight[kept])


def test_whole_number_inputs_reach_an_embedding_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).bfloat16()
    result = thresholded(model, torch.arange(10)[:, None].expand(10, 3), 0.5)
    assert result.report.layers[0].nonzeros == 15


# Compensation and batch norm


@torch.no_grad()
def test_compensation_lowers_the_error_of_the_logits_and_changes_that_layer_alone():
    model = mlp()
    plain = thresholded(model, X, 0.8)
    refitted = thresholded(model, X, 0.8, compensate=True)
    errors = [float((r.model(X) - model(X)).norm()) for r in (plain, refitted)]
    assert errors[1] < 0.9 * errors[0]
    assert refitted.report.compensated == {"out": "ok"}
    assert plain.report.compensated == {}
    for name, tensor in refitted.model.state_dict().items():
        assert torch.equal(tensor, plain.model.state_dict()[name]) == (not name.startswith("out"))
    first = thresholded(model, X, 0.5, layers="fc1", compensate=True)
    assert first.report.compensated == {"fc2": "ok"}  # the layer after a pruned one, and no other
    assert torch.equal(first.model.out.weight, model.out.weight)


def test_batch_norm_statistics_are_those_of_the_pruned_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    result = thresholded(model, X, 0.5, layers="0", settings=Settings(batchnorm=True))
    norm, x = result.model[1], fitted(X)
    torch.testing.assert_close(norm.running_mean, result.model[0](x).mean(0))
    torch.testing.assert_close(norm.running_var, result.model[0](x).var(0))
    assert not norm.training
    assert torch.equal(model[1].running_mean, torch.zeros(8))
    kept = thresholded(model, X, 0.5, layers="0", settings=Settings(batchnorm=False))
    assert torch.equal(kept.model[1].running_mean, torch.zeros(8))
    assert kept.report.batchnorm == ""


@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_batch_norm_statistics_are_estimated_anew_only_if_held_out_outputs_say_so(scale):
    """Statistics that fit the data lose to an estimate where pruning has shrunk the layer's outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    data = torch.randn(600, 6)
    model[1].running_mean, model[1].running_var = model[0](data).mean(0).detach(), model[0](data).var(0).detach()
    act = shrinking(scale)
    result = feta.prune(model, data, 0.5, act, layers="0")
    changed = not torch.equal(result.model[1].running_var, model[1].running_var)
    assert changed == (scale < 1)
    assert ("statistics estimated anew: " in result.report.batchnorm) == changed


# The seed


def test_the_seed_reaches_the_method_unless_it_has_its_own(monkeypatch):
    Spy = type(spy())
    monkeypatch.setitem(METHODS, "spy", Spy)
    for method, options, expected in (("spy", None, 7), ("spy", {"seed": 3}, 3), (Spy(seed=5), None, 5)):
        Spy.seen.clear()
        report = feta.prune(mlp(), X, 0.5, method, seed=7, options=options).report
        assert [entry["seed"] for entry in Spy.seen] == [expected] * 2
        assert (report.seed, report.options) == (7, {"seed": expected})


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "thresold"}, "unknown method 'thresold'; did you mean 'threshold'"),
        ({"method": 3}, "method must be text or a feta.Pruner, got 3; write"),
        ({"allocation": "uniforn"}, "unknown allocation 'uniforn'; did you mean 'uniform'"),
        ({"options": {"speed": 3}}, "unknown option of threshold 'speed'"),
        ({"method": spy(), "options": {"seed": 3}}, "options must be empty when method is a Spy object"),
        ({"layers": "fc9"}, "layers must name layers that can be pruned, got 'fc9'"),
        ({"layers": []}, "layers must name at least one layer"),
        ({"sparsity": {}}, "sparsity must name at least one layer"),
        ({"sparsity": 90}, "sparsity must be in"),
        ({"sparsity": "90 %"}, "sparsity must be a number"),
        ({"allocation": 3}, "allocation must be text or an Allocation, got 3"),
        ({"refine": None}, "refine must be True, False or a feta.Refinement, got None"),
        ({"data": "images.pt"}, "data must be a tensor or an iterable of batches, got str"),
        ({"data": []}, "data must hold at least one sample, got none"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        thresholded(mlp(), **{"data": X, **arguments})


@pytest.mark.parametrize(
    ("arguments", "need"),
    [
        ({"method": spy()}, "method 'spy'"),
        ({"compensate": True}, "compensate, batchnorm and refine"),
        ({"settings": Settings(batchnorm=True)}, "compensate, batchnorm and refine"),
        ({"refine": True}, "compensate, batchnorm and refine"),
    ],
)
def test_data_that_is_missing(arguments, need):
    with pytest.raises(ConfigError, match=f"data must be given for {need}, got None"):
        thresholded(mlp(), **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "cascaded"}, "unknown Settings.mode 'cascaded'; did you mean 'cascade'"),
        ({"cache": "memry"}, "unknown Settings.cache 'memry'; did you mean 'memory'"),
        ({"n_samples": 0}, "Settings.n_samples must be >= 1, got 0"),
        ({"batch_size": 1.5}, "Settings.batch_size must be a whole number, got 1.5"),
        ({"activation": "rellu"}, "unknown activation 'rellu'; did you mean 'relu'"),
        ({"activation": {"fc1": "rellu"}}, "unknown activation 'rellu'; did you mean 'relu'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        Settings(**settings)


BROKEN = {
    "not a solution": (lambda p: p.W, "must give a LayerSolution, got Tensor"),
    "not a tensor": (lambda p: LayerSolution(None, p.bias), r"must give U \(6, 8\) .* got NoneType"),
    "shape": (lambda p: LayerSolution(p.W[:, :2], p.bias), r"must give U \(6, 8\) torch.float32 .* got \(6, 2\)"),
    "dtype": (lambda p: LayerSolution(p.W.double(), p.bias), "must give U .* got .* torch.float64"),
    "NaN": (lambda p: LayerSolution(p.W / 0 * 0, p.bias), "must give finite U, got 48 NaN or infinite entries"),
    "no bias": (lambda p: LayerSolution(p.W, None), r"must give bias \(8,\) .* got NoneType"),
    "bias": (lambda p: LayerSolution(p.W, p.bias * math.inf), "must give finite bias, got 8 NaN"),
    "too many": (lambda p: LayerSolution(p.W, p.bias), "must keep at most 24 weights, got 48"),
    "W itself": (lambda p: LayerSolution(p.W.zero_(), p.bias), "must not give zeros alone"),
    "nothing": (lambda p: LayerSolution(p.W * 0, p.bias), "must not give zeros alone where 24 weights may stay"),
    "too few": (lambda p: LayerSolution(largest(p.W, 20), p.bias), "must keep exactly 24 weights, got 20"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_method_that_breaks_the_contract_is_named(name):
    act, message = BROKEN[name]
    with pytest.raises(ModelError, match=f"layer 'fc1': method 'spy' {message}"):
        feta.prune(mlp(), X, 0.5, spy(act=lambda problem, target: act(problem)))


def test_a_method_may_keep_fewer_weights_when_it_says_so():
    few = spy(act=lambda p, t: LayerSolution(largest(p.W, 3), p.bias))
    type(few).needs = Needs(count="most")
    assert [layer.nonzeros for layer in feta.prune(mlp(), X, 0.5, few).report.layers] == [3, 3]


def test_weights_that_are_zero_already_may_stay_zero():
    model = mlp()
    with torch.no_grad():
        model.fc1.weight[2:] = 0
    assert thresholded(model, X, 0.5).report.layers[0].nonzeros == 12


def test_nan_weights_are_named_once():
    model = mlp()
    with torch.no_grad():
        model.fc2.weight[0, :3] = float("nan")
    for data in (None, X):
        with pytest.raises(ModelError, match="fc2: weights must be finite, got 3 NaN or infinite of 56") as caught:
            thresholded(model, data)
        assert str(caught.value).count("fc2") == 1


@pytest.mark.parametrize("name", ["fc1", "a", "step"])
@pytest.mark.parametrize("kind", [ConfigError, DataError, ModelError, feta.FileError])
def test_errors_of_a_method_get_the_layers_name_once(name, kind):
    model = nn.Sequential(OrderedDict([(name, nn.Linear(6, 5)), ("relu", nn.ReLU()), ("out", nn.Linear(5, 2))]))
    for said, heard in (("step must be > 0", f"layer '{name}': step must be > 0"), (f"{name}: no", f"{name}: no")):
        with pytest.raises(kind) as caught:
            feta.prune(model, X, 0.5, spy(act=Mock(side_effect=kind(said))))
        assert str(caught.value) == heard


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"compensate": True, "layers": "fc1"}])
def test_data_that_is_not_finite(bad, options):
    data = X.clone()
    data[3, 2] = bad
    with pytest.raises(
        DataError, match=r"data must be finite, got 1 NaN or infinite values, the first in sample 3; leave"
    ):
        thresholded(mlp(), data, 0.5, **options)


def test_compensation_names_the_layer_it_fails_at():
    class Spoils(nn.Module):
        def forward(self, x):
            return x / 0.0

    layers = [("fc1", nn.Linear(6, 5)), ("spoils", Spoils()), ("out", nn.Linear(5, 2))]
    with pytest.raises(DataError, match="layer 'out': a layer's inputs must be finite"):
        thresholded(nn.Sequential(OrderedDict(layers)), X, 0.5, compensate=True)


def test_models_torch_prunes_already_say_what_to_do():
    model = mlp()
    torch_prune.l1_unstructured(model.fc1, "weight", amount=0.5)
    with pytest.raises(ModelError, match=r"must be one that copy.deepcopy can copy, .*prune.remove"):
        thresholded(model, X)


def test_a_parametrised_layer_can_be_left_out_but_not_pruned():
    model = mlp()
    parametrizations.weight_norm(model.fc1)
    with pytest.raises(ModelError, match="layer 'fc1' must hold its weight as a plain parameter"):
        thresholded(model, X, layers="fc1")
    assert list(thresholded(model, X, layers="fc2").masks) == ["fc2"]
    by_default = thresholded(model, X)
    assert list(by_default.masks) == ["fc2"]
    (left,) = (entry for entry in by_default.report.skipped if entry.name == "fc1")
    assert left.reason.startswith("its weight is computed, so that nothing could be written to it; make it plain")


@pytest.mark.filterwarnings("ignore:.*jit.* is deprecated:DeprecationWarning")
def test_torchscript_is_refused_in_words():
    with pytest.raises(ModelError, match="must be made of plain modules, got TorchScript"):
        feta.prune(torch.jit.trace(mlp(), X[:2]), X)


@pytest.mark.filterwarnings("ignore:.*jit.* is deprecated:DeprecationWarning")
def test_a_compiled_model_is_refused_with_the_cure():
    with pytest.raises(ModelError, match=r"got one of torch.compile; give .*\(compiled._orig_mod\), and compile the"):
        thresholded(torch.compile(mlp()), X, 0.5)


def test_a_model_in_data_parallel_is_refused_with_the_cure():
    with pytest.raises(ModelError, match=r"got one in nn.DataParallel; give model.module"):
        thresholded(nn.DataParallel(mlp()), X, 0.5)


# One layer held as tensors


def test_smart_prune():
    W, A = torch.randn(6, 4), torch.randn(20, 6)
    solution = feta.smart_prune(W, A, F.relu(A @ W), sparsity=0.75, method="threshold")
    assert int((solution.U != 0).sum()) == 6
    assert int((feta.smart_prune(W, A, A @ W, sparsity=Sparsity(nonzeros=5)).U != 0).sum()) == 5


def test_smart_prune_shows_the_method_its_arguments():
    pruner = spy()
    W, A, B, bias = torch.randn(6, 4).double(), torch.randn(20, 6), torch.randn(20, 4), torch.ones(4).double()
    feta.smart_prune(W, A, B, sparsity=0.5, method=pruner, activation="linear", bias=bias, chunk_rows=7)
    (entry,) = pruner.seen
    shown = (entry["A"], entry["B"], entry["problem"].bias)
    assert all(map(torch.equal, shown, (A.double(), B.double(), bias)))
    assert str(entry["problem"].activation) == "linear"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": torch.ones(20, 5)}, r"must be \(m, d_in\)"),
        ({"B": torch.ones(20, 3)}, r"must be \(m, d_in\)"),
        ({"A": torch.ones(6)}, r"must be \(m, d_in\)"),
        ({"B": torch.ones(19, 4)}, r"must be \(m, d_in\)"),
        ({"A": torch.ones(0, 6), "B": torch.ones(0, 4)}, r"must be \(m, d_in\)"),
        ({"W": torch.ones(6), "B": torch.ones(20)}, r"must be \(m, d_in\)"),
        ({"W": torch.full((6, 4), math.nan)}, "weights must be finite"),
        ({"bias": torch.ones(3)}, r"bias must have shape \(4,\)"),
        ({"activation": "tanh"}, "unknown activation 'tanh'"),
        ({"sparsity": 1.0}, "sparsity must be in"),
    ],
)
def test_smart_prune_of_what_cannot_be(arguments, message):
    layer = {"W": torch.ones(6, 4), "A": torch.ones(20, 6), "B": torch.ones(20, 4)}
    with pytest.raises(ModelError if "finite" in message else ConfigError, match=message):
        feta.smart_prune(**(layer | arguments))


def test_the_default_method_is_one_of_the_table():
    assert DEFAULT_METHOD in METHODS
    assert feta.prune(mlp(), X, 0.5, effort="fast").report.method == DEFAULT_METHOD
