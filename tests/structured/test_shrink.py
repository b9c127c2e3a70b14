"""shrink as a whole: the target, the outputs, what is said, and what is refused."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

pytest.importorskip("torch_pruning", reason="needs torch-pruning, pip install torch-pruning")

import feta
from feta import plugins
from feta.structured.build import lost_channels
from feta.structured.groups import Group
from nets import convnet, mlp, traced

ROWS = torch.randn(300, 12, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(60, 2, 8, 8, generator=torch.Generator().manual_seed(0))


def images_net(**options):
    return convnet(6 * 6 * 6, **options)


def outputs(model, x):
    with torch.no_grad():
        return model.eval()(x)


def far(model, other, x):
    return float((outputs(model, x) - outputs(other, x)).norm() / outputs(other, x).norm())


def counted(model, x):
    """Multiply-adds by the shapes of the weights alone."""
    return sum(trace.rows * model.get_submodule(name).weight.numel() for name, trace in traced(model, x).items())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("allocation", ["error", "uniform", None])
def test_the_share_of_multiply_adds_goes(share, allocation):
    model = mlp(12, 40, 30, 4)
    before = copy.deepcopy(model.state_dict())
    result = feta.shrink(model, ROWS, share, effort="fast", allocation=allocation)
    report = result.report
    assert report.before.multiply_adds == counted(model, ROWS) == 12 * 40 + 40 * 30 + 30 * 4
    assert report.after.multiply_adds == counted(result.model, ROWS)
    assert (1 - share) * 1800 - 80 <= report.after.multiply_adds <= (1 - share) * 1800
    assert result.model.out.out_features == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert far(result.model, model, ROWS) < (1e-5 if share == 0 else 0.8)
    assert len(report.tried) == (2 if allocation is None else 1)


def test_neurons_that_say_nothing_new_go_without_a_loss():
    """Half of the hidden neurons are copies of the others, each scaled: the refit makes up for them."""
    model = mlp(12, 20, 4)
    with torch.no_grad():
        model.fc1.weight[10:] = 3 * model.fc1.weight[:10]
        model.fc1.bias[10:] = 3 * model.fc1.bias[:10]
    result = feta.shrink(model, ROWS, 0.5, effort="fast", allocation="error")
    assert result.model.fc1.out_features == 10
    assert len({unit % 10 for unit in result.kept["fc1"]}) == 10
    assert far(result.model, model, ROWS) < 0.01


def test_it_is_nearer_to_the_original_than_the_same_widths_by_magnitude():
    torch.manual_seed(0)
    model = mlp(12, 40, 30, 4)
    ours = feta.shrink(model, ROWS, 0.5, effort="fast", allocation="uniform")
    keep = {}
    for name, group in zip(("fc1", "fc2"), sorted(ours.report.groups), strict=True):
        size = model.get_submodule(name).weight.norm(dim=1)
        keep[name] = size.argsort(descending=True)[: group.after].tolist()
    theirs = feta.shrink(model, ROWS, keep=keep, effort="fast")
    assert theirs.report.after.multiply_adds == ours.report.after.multiply_adds
    assert theirs.report.allocation == "given"
    assert far(ours.model, model, ROWS) < far(theirs.model, model, ROWS)


def test_a_refit_is_better_than_none():
    model = mlp(12, 40, 30, 4)
    result = feta.shrink(model, ROWS, 0.5, effort="fast")
    bare = mlp(12, len(result.kept["fc1"]), len(result.kept["fc2"]), 4)
    one, two = result.kept["fc1"], result.kept["fc2"]
    state = model.state_dict()
    bare.load_state_dict(
        {
            "fc1.weight": state["fc1.weight"][one],
            "fc1.bias": state["fc1.bias"][one],
            "fc2.weight": state["fc2.weight"][two][:, one],
            "fc2.bias": state["fc2.bias"][two],
            "out.weight": state["out.weight"][:, two],
            "out.bias": state["out.bias"],
        }
    )
    assert far(result.model, model, ROWS) < 0.7 * far(bare, model, ROWS)


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d(4)])
def test_convolutions_grouped_ones_and_maps_that_are_flattened(norm):
    if norm is not None:
        with torch.no_grad():
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    model = images_net(norm=norm).eval()
    result = feta.shrink(model, IMAGES, 0.4, effort="fast")
    assert result.model.conv2.groups == 2
    assert counted(result.model, IMAGES) == result.report.after.multiply_adds <= 0.6 * counted(model, IMAGES)
    assert far(result.model, model, IMAGES) < 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_models_own_precision_is_kept(dtype):
    model = mlp(12, 20, 4).to(dtype)
    result = feta.shrink(model, ROWS.to(dtype), 0.3, effort="fast")
    assert {weight.dtype for weight in result.model.parameters()} == {dtype}
    assert far(result.model, model, ROWS.to(dtype)) < 0.5


def test_layers_without_a_bias_modes_and_frozen_weights():
    model = nn.Sequential(
        nn.Linear(12, 20, bias=False), nn.ReLU(), nn.Dropout(), nn.Linear(20, 4, bias=False)
    ).train()
    model[0].weight.requires_grad_(False)
    result = feta.shrink(model, ROWS, 0.3, effort="fast")
    assert result.model.training
    assert not result.model[0].weight.requires_grad
    assert result.model[3].bias is None


def test_a_batch_of_one_and_data_that_is_not_contiguous():
    result = feta.shrink(mlp(12, 20, 4), ROWS.t().contiguous().t(), 0.5, effort="fast")
    assert result.model(ROWS[:1]).shape == (1, 4)


def test_the_whole_network_is_fitted_and_kept_only_if_that_helped():
    model = mlp(12, 40, 30, 4)
    fast = feta.shrink(model, ROWS, 0.6, effort="fast")
    fitted = feta.shrink(model, ROWS, 0.6, seconds=3)
    assert [stage.name for stage in fitted.report.stages] == ["layer by layer", "whole network fitted"]
    assert sum(stage.kept for stage in fitted.report.stages) == 1
    assert fitted.report.stages[1].distance < fast.report.stages[0].distance
    assert fitted.report.refinement is not None


def test_a_limit_in_seconds_ends_the_fit(monkeypatch):
    monkeypatch.setattr("feta.structured.shrink.STEPS", {"default": 10**6})
    stage = feta.shrink(mlp(12, 40, 30, 4), ROWS, 0.6, seconds=1.5).report.stages[1]
    assert "of 1000000 (for want of time)" in stage.message


def test_few_samples_are_enough_to_run():
    report = feta.shrink(mlp(12, 20, 4), ROWS[:3], 0.3).report
    assert report.refinement is None
    assert "too few samples" in repr(report)


def test_the_report():
    result = feta.shrink(mlp(12, 20, 4), ROWS, 0.5, effort="fast")
    report = json.loads(result.report.to_json())
    assert report["groups"] == [{"name": "fc1", "before": 20, "after": len(result.kept["fc1"])}]
    assert report["after"]["multiply_adds"] < report["before"]["multiply_adds"]
    assert report["after"]["milliseconds"] > 0
    for text in ("50.0 % of the multiply-adds removed", "multiply-adds: 320 → 160", "fc1  20 → 10", "milliseconds"):
        assert text in repr(result)
    assert "left as it is: out: its outputs are the model's" in repr(result)


def test_a_smaller_network_that_is_slower_is_said():
    report = feta.shrink(mlp(12, 20, 4), ROWS, 0.5, effort="fast").report
    for after, slower in ((2.0, True), (1.05, False), (0.5, False)):
        timed = replace(
            report, before=report.before._replace(milliseconds=1.0), after=report.after._replace(milliseconds=after)
        )
        assert (f"1 → {after:.3g}: slower here" in repr(timed)) == slower


def test_what_was_kept_gives_the_same_structure_again():
    model = images_net().eval()
    result = feta.shrink(model, IMAGES, 0.4, effort="fast")
    again = feta.shrink(model, IMAGES, keep=result.kept, effort="fast")
    assert again.kept == result.kept
    assert torch.allclose(outputs(again.model, IMAGES), outputs(result.model, IMAGES), atol=1e-5)
    with pytest.raises(feta.ConfigError, match=r"keep\['conv2'\] must keep the same places of every group"):
        feta.shrink(model, IMAGES, keep={"conv2": [0, 1, 2]})


def test_a_layer_that_is_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.out = nn.Linear(12, 20), nn.Linear(20, 20), nn.Linear(20, 4)

        def forward(self, x):
            return self.out(self.b(self.b(self.a(x).relu()).relu()).relu())

    model = Twice()
    result = feta.shrink(model, ROWS, 0.3, effort="fast")
    assert counted(result.model, ROWS) <= 0.7 * counted(model, ROWS)
    assert far(result.model, model, ROWS) < 1


def test_layers_that_may_lose_outputs():
    result = feta.shrink(mlp(12, 40, 30, 4), ROWS, 0.2, effort="fast", layers="fc2")
    assert (result.model.fc1.out_features, list(result.kept)) == (40, ["fc2"])
    assert result.report.refused["fc1"] == "not asked for"


def test_the_same_seed_gives_the_same_network():
    one, two = (feta.shrink(mlp(12, 40, 30, 4), ROWS, 0.5, effort="fast", seed=3) for _ in range(2))
    assert one.kept == two.kept
    assert torch.equal(outputs(one.model, ROWS), outputs(two.model, ROWS))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 1.0}, r"share must be in \[0, 1\), got 1.0"),
        ({"share": 50}, "write 0.5 for 50 %"),
        ({"share": 0.999}, "share must be at most 0.9"),
        ({"effort": "slow"}, "unknown effort 'slow'"),
        ({"allocation": "global"}, "unknown allocation 'global'"),
        (
            {"keep": {"out": [0]}},
            r"keep must name layers out of \['fc1'\], got 'out' \(its outputs are the model's\)",
        ),
        ({"keep": {"fc1": [20]}}, r"keep\['fc1'\] must be outputs from 0 to 19"),
        ({"keep": {"fc1": []}}, r"keep\['fc1'\] must be outputs"),
        ({"layers": "fc9"}, "got 'fc9' which matches none"),
        ({"seconds": 0}, "seconds must be > 0"),
    ],
)
def test_arguments_that_cannot_be(given, message):
    with pytest.raises(feta.ConfigError, match=message):
        feta.shrink(mlp(12, 20, 4), ROWS, **given)


def test_no_data_and_nothing_to_remove():
    with pytest.raises(feta.ConfigError, match="data must be given for shrink, got None"):
        feta.shrink(mlp(12, 20, 4), None)
    with pytest.raises(feta.ModelError, match=r"channels that can be removed, got none.*feta\.prune prunes it"):
        feta.shrink(nn.Linear(12, 4), ROWS)


def test_inputs_from_several_groups_are_put_together():
    index = torch.arange(3)[:, None]
    both = [Group("a", {"a": index}, {"c": index}), Group("b", {"b": index}, {"c": index + 3})]
    inputs, outputs_ = lost_channels(both, {"a": torch.tensor([1]), "b": torch.tensor([0, 2])})
    assert inputs["c"].tolist() == [1, 3, 5]
    assert outputs_["b"].tolist() == [0, 2]


# Transformers


def test_inner_neurons_of_an_encoder_go_and_heads_stay():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.Sequential(block, nn.Flatten(), nn.Linear(16 * 5, 3)).eval()
    x = torch.randn(60, 5, 16)
    result = feta.shrink(model, x, 0.15, effort="fast")
    assert [group.name for group in result.report.groups] == ["0.linear1"]
    assert "heads" in result.report.refused["0.self_attn.out_proj"]
    assert result.model[0].linear2.in_features == result.report.groups[0].after < 32
    assert far(result.model, model, x) < 0.2


def test_inner_neurons_of_a_language_model_go():
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 20}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()
    tokens = torch.randint(20, (24, 8), generator=torch.Generator().manual_seed(0))
    result = feta.shrink(model, {"input_ids": tokens}, 0.2, effort="fast")
    for block in result.model.model.layers:
        assert block.mlp.gate_proj.out_features == block.mlp.up_proj.out_features == block.mlp.down_proj.in_features
    assert sum(group.after for group in result.report.groups) < 64
    assert "heads" in result.report.refused["model.layers.0.self_attn.q_proj"]
    with torch.no_grad():
        one, other = result.model(tokens).logits, model(tokens).logits
    assert float((one - other).norm() / other.norm()) < 0.1


# What is missing


def test_without_torch_pruning(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(plugins.importlib, "import_module", missing)
    with pytest.raises(feta.ConfigError, match=r"must have the package torch-pruning.*pip install torch-pruning"):
        feta.shrink(mlp(12, 20, 4), ROWS)


def test_what_notebooks_show_and_progress(monkeypatch, capsys):
    monkeypatch.setattr("feta.progress.SELDOM", 0.0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    result = feta.shrink(model, torch.randn(100, 12), 0.5, effort="fast", progress=True)
    shown = result._repr_html_()
    assert f"<b>{result.report.headline()[0]}</b>" in shown
    assert f"<summary>{len(result.report.groups)} widths</summary>" in shown
    assert "left as it is: 4" in shown
    notes = [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()]
    assert notes[:2] == ["which channels hang together", "which of them matter least"]
    assert notes[-1] == "timing both"
