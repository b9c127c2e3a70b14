"""Which layers are pruned: the default, patterns, and every choice that cannot be met."""

import pytest
from torch import nn
from torch.nn.utils import parametrizations

from feta.allocation import make_allocation
from feta.engine.select import select, targets
from feta.errors import ConfigError, ModelError
from feta.layers import prunable_names
from feta.sparsity import Sparsity


@pytest.fixture
def model():
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    layers = {"conv1": nn.Conv2d(1, 2, 3), "relu": nn.ReLU(), "fc1": nn.Linear(4, 4), "block": block}
    return nn.ModuleDict(layers | {"out": nn.Linear(4, 2)})


NAMES = ["conv1", "fc1", "block.0", "block.2", "out"]


def test_by_default_every_linear_but_the_last_to_run(model):
    assert prunable_names(model) == NAMES
    assert select(model, NAMES, None) == ["fc1", "block.0", "block.2"]
    assert select(model, ["out", "fc1", "block.2", "block.0", "conv1"], None) == ["out", "fc1", "block.2"]


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        ("fc1", ["fc1"]),
        ("fc*", ["fc1"]),
        (["out", "conv1"], ["conv1", "out"]),  # in order of execution
        (("block.*", "block.0"), ["block.0", "block.2"]),
        ("*", NAMES),
        ("block.[02]", ["block.0", "block.2"]),
    ],
)
def test_patterns(model, layers, chosen):
    assert select(model, NAMES, layers) == chosen


@pytest.mark.parametrize("pattern", ["fc2", "relu", "block", "FC1", "block.1", None])
def test_a_pattern_that_matches_nothing(model, pattern):
    message = rf"layers must name layers that can be pruned, got '{pattern}' .*'fc1'"
    with pytest.raises(ConfigError, match=message if pattern else "layers must name at least one layer, got none"):
        select(model, NAMES, ["fc1", pattern] if pattern else [])


def test_one_linear_layer_is_the_last_one():
    with pytest.raises(ModelError, match=r"two or more Linear layers .* got \['1'\]; .*layers=, out of \['0', '1'\]"):
        select(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(1, 1)), ["0", "1"], None)


def test_layers_that_do_not_run_can_be_left_out_but_not_pruned(model):
    running = [name for name in NAMES if name != "block.0"]
    message = r"must run in the model's forward pass, got \['block.0'\] which do not; name the others with layers="
    for layers in (None, "block.*", ["fc1", "block.0"]):
        with pytest.raises(ModelError, match=message):
            select(model, running, layers)
    assert select(model, running, ["fc1", "block.2"]) == ["fc1", "block.2"]
    assert select(model, NAMES[1:], None) == ["fc1", "block.0", "block.2"]  # an idle convolution is in nobody's way


def test_layers_with_one_weight(model):
    model["block"][2].weight = model["fc1"].weight
    with pytest.raises(ModelError, match=r"got 'fc1' and 'block.2' with one weight; name one of them alone"):
        select(model, NAMES, "*")
    assert select(model, NAMES, ["fc1", "block.0"]) == ["fc1", "block.0"]


def test_weights_that_are_computed_are_not_taken_for_one(model):
    for name in ("fc1", "block.0", "out"):
        parametrizations.weight_norm(model.get_submodule(name))
    assert select(model, NAMES, "*") == NAMES


def test_one_share_for_all_or_one_per_pattern_of_which_the_first_match_counts(model):
    uniform = make_allocation("uniform")
    found = targets(model, ["fc1", "out"], 0.7, uniform)
    assert found == {"fc1": Sparsity(nonzeros=5), "out": Sparsity(nonzeros=2)}
    found = targets(model, ["fc1", "block.0", "block.2"], {"block.0": 0.5, "block.*": 0.9}, uniform)
    assert found == {"block.0": Sparsity(0.5), "block.2": Sparsity(0.9)}


@pytest.mark.parametrize(
    ("sparsity", "allocation", "message"),
    [
        ({"fc1": 1.5}, "uniform", r"sparsity\['fc1'\] must be in \[0, 1\), got 1.5"),
        ({"fc1": True}, "uniform", r"sparsity\['fc1'\] must be a number"),
        ({"out": 0.5}, "uniform", r"sparsity must name layers that can be pruned, got 'out' .* \['fc1'\]"),
        ({}, "uniform", "sparsity must name at least one layer, got none"),
        ({"fc1": 0.5}, "global-magnitude", "allocation must be uniform where sparsity is per layer"),
        (0.5, "globl-magnitude", "unknown allocation 'globl-magnitude'; did you mean 'global-magnitude'"),
        (1.0, "uniform", r"sparsity must be in \[0, 1\), got 1.0"),
        (float("nan"), "uniform", r"sparsity must be in \[0, 1\), got nan"),
    ],
)
def test_targets_that_cannot_be_met(model, sparsity, allocation, message):
    with pytest.raises(ConfigError, match=message):
        targets(model, ["fc1"], sparsity, make_allocation(allocation))
