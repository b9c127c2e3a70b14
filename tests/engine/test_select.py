"""Which layers are pruned: the default, patterns, every choice that cannot be met, and why the others are not."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from feta.allocation import make_allocation
from feta.calibration.model import fused_attention_off
from feta.calibration.recording import record
from feta.calibration.trace import LayerTrace, trace_layers, untraced
from feta.engine.select import select, skipped, spared, targets
from feta.errors import ConfigError, ModelError
from feta.layers import prunable_names
from feta.sparsity import Sparsity

X = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    layers = {"conv1": nn.Conv2d(1, 2, 3), "relu": nn.ReLU(), "conv2": nn.Conv2d(2, 1, 1), "flat": nn.Flatten()}
    layers |= {"fc1": nn.Linear(4, 4), "block": block, "out": nn.Linear(4, 2)}
    return nn.Sequential(OrderedDict(layers))


NAMES = ["conv1", "conv2", "fc1", "block.0", "block.2", "out"]


def traces(model: nn.Module, x=X) -> list[LayerTrace]:
    with fused_attention_off():
        return trace_layers(record(model, x))


def chosen(model: nn.Module, layers=None, x=X) -> list[str]:
    return select(model, traces(model, x), layers)


def reasons(model: nn.Module, layers=None, x=X) -> dict[str, str]:
    """Of all that is left as it is."""
    found = skipped(model, traces(model, x), chosen(model, layers, x), by_default=layers is None)
    return {entry.name: entry.reason for entry in found}


# The default


def test_by_default_all_but_the_ends(model):
    """A convolution that reads the model's input and a layer whose outputs are the model's stay as they are."""
    assert prunable_names(model) == NAMES
    assert chosen(model) == ["conv2", "fc1", "block.0", "block.2"]
    assert reasons(model) == {"conv1": "it reads the model's input", "out": "its outputs are the model's"}


def test_a_linear_layer_that_reads_the_input_is_pruned():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2))
    assert chosen(model) == ["1"]


def test_the_order_is_that_of_execution(model):
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.b, self.a = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(16, 4)

        def forward(self, x):
            return self.out(self.b(torch.relu(self.a(x.flatten(1)))).relu())

    assert chosen(Backwards()) == ["a", "b"]
    assert chosen(Backwards(), "*") == ["a", "b", "out"]


def test_two_heads_and_an_auxiliary_one():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.one, self.two = nn.Linear(16, 4), nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x):
            h = torch.relu(self.a(x.flatten(1)))
            return {"logits": self.one(h), "other": self.two(h).softmax(1)}

    assert chosen(Heads()) == ["a"]


@pytest.mark.parametrize(
    "end",
    [
        lambda y: F.pixel_shuffle(y, 2),
        lambda y: y.narrow(1, 0, 2).swapaxes(1, 2),
        lambda y: y.double().clamp(0, 1),
        lambda y: y.mean((2, 3)).log_softmax(1),
    ],
)
def test_what_reads_a_head_alone_makes_no_hidden_layer_of_it(end):
    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.mid, self.head = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 4), (4, 4), (4, 4)))

        def forward(self, x):
            return end(self.head(torch.relu(self.mid(torch.relu(self.stem(x))))))

    assert chosen(Ends()) == ["mid"]


@pytest.mark.parametrize(
    "end",
    [
        lambda y, mean: y[torch.arange(len(y)), torch.arange(len(y)) % 2],
        lambda y, mean: y[:, 0] * 2 + mean,
        lambda y, mean: y[:, 0].masked_fill(mean > 0, -1e9),
        lambda y, mean: torch.where(mean > 0, y[:, 0], -mean),
    ],
)
def test_a_head_whose_scores_are_picked_scaled_or_masked_is_one(end):
    """At the last token of each sample, say, as in classifiers of texts."""

    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(8, 4)
            self.register_buffer("mean", torch.tensor([1.0, -1.0, 0.5, 0.0]))

        def forward(self, x):
            h = torch.relu(self.b(torch.relu(self.a(x.flatten(1)))))
            return end(self.head(torch.stack([h, 2 * h], 1)), self.mean)

    assert chosen(Picks()) == ["a", "b"]


def test_features_behind_an_activation_are_no_head():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU())
    assert chosen(model) == ["1", "3"]


def test_a_weight_that_is_an_embeddings_too():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(torch.relu(self.fc(self.embed(ids))))

    ids = torch.zeros(2, 3, dtype=torch.int64)
    assert chosen(Tied(), x=ids) == ["fc"]
    assert reasons(Tied(), x=ids) == {"head": "its weight is an embedding's too"}
    assert chosen(Tied(), "head", x=ids) == ["head"]  # by name it can be


def test_attention_and_convolutions_of_every_kind():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.mid = nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
            self.encoder = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
            self.rnn, self.up = nn.GRU(4, 4, batch_first=True), nn.ConvTranspose1d(4, 4, 1)
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            x = torch.relu(self.mid(torch.relu(self.stem(x.flatten(2)))))
            x, _ = self.rnn(self.encoder(x.transpose(1, 2)))
            return self.fc(self.up(x.transpose(1, 2)).mean(2))

    names = [f"encoder.{name}" for name in ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")]
    assert chosen(Odd()) == ["mid", *names]
    assert reasons(Odd()) == {
        "stem": "it reads the model's input",
        "fc": "its outputs are the model's",
        "rnn": "recurrent: its inputs depend on its own outputs",
        "up": "a transposed convolution",
    }


def test_a_model_may_say_which(model):
    model.default_layers = ["fc*", "out"]
    assert chosen(model) == ["fc1", "out"]
    assert chosen(model, "conv1") == ["conv1"]  # the user has the last word
    model.default_layers = []
    assert chosen(model) == ["conv2", "fc1", "block.0", "block.2"]
    model.default_layers = ["fc9"]
    with pytest.raises(ConfigError, match="got 'fc9' which matches none"):
        chosen(model)


def test_nothing_is_left_for_the_default():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(16, 1))
    with pytest.raises(ModelError, match=r"layers='\*' prunes what can be: 0, 2"):
        chosen(model)
    assert chosen(model, "*") == ["0", "2"]

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.rnn(x[..., 0])[0][:, -1])

    with pytest.raises(ModelError, match=r"prunes what can be: head; what cannot be pruned: rnn \(recurrent"):
        chosen(Recurrent())
    with pytest.raises(ModelError, match="a linear layer, a convolution or an attention to prune, got none"):
        chosen(nn.Sequential(nn.ReLU()))


def test_without_data_the_first_and_the_last_defined_are_the_ends(model):
    found = untraced(model)
    assert select(model, found, None) == ["conv2", "fc1", "block.0", "block.2"]
    assert select(model, found, "*") == NAMES


# By name


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("fc1", ["fc1"]),
        ("fc*", ["fc1"]),
        (["out", "conv1"], ["conv1", "out"]),  # in order of execution
        (("block.*", "block.0"), ["block.0", "block.2"]),
        ("*", NAMES),
        ("block.[02]", ["block.0", "block.2"]),
    ],
)
def test_patterns(model, layers, names):
    assert chosen(model, layers) == names


@pytest.mark.parametrize("pattern", ["fc2", "relu", "block", "FC1", "block.1", None])
def test_a_pattern_that_matches_nothing(model, pattern):
    message = rf"layers must name layers that can be pruned, got '{pattern}' .*'fc1'"
    with pytest.raises(ConfigError, match=message if pattern else "layers must name at least one layer, got none"):
        chosen(model, ["fc1", pattern] if pattern else [])


def test_a_layer_that_cannot_be_pruned_is_refused_with_its_reason(model):
    running = traces(model)
    model.memory = nn.LSTM(4, 4)
    with pytest.raises(
        ConfigError, match="got 'memory' of class LSTM: recurrent: its inputs depend on its own outputs"
    ):
        select(model, running, ["fc1", "memory"])


def test_layers_that_do_not_run_can_be_left_out_but_not_pruned(model):
    running = [trace for trace in traces(model) if trace.name != "block.0"]
    message = r"an operator of the forward pass reads, got \['block.0'\] which have not; name the others with layers="
    for layers in ("block.0", "block.[0]", ["fc1", "block.0"]):
        with pytest.raises(ModelError, match=message):
            select(model, running, layers)
    assert select(model, running, "block.*") == ["block.2"]  # a pattern takes what there is
    assert select(model, running, ["fc1", "block.2"]) == ["fc1", "block.2"]
    assert select(model, running, None) == ["conv2", "fc1", "block.2"]  # by default it is in nobody's way
    found = skipped(model, running, select(model, running, None), by_default=True)
    assert {entry.name: entry.reason for entry in found}["block.0"] == (
        "it does not run in the forward pass, or something reads its weight in another way"
    )


def test_layers_with_one_weight_are_pruned_once_by_either_name(model):
    model.block[2].weight = model.fc1.weight
    assert chosen(model, "*") == ["conv1", "conv2", "fc1", "block.0", "out"]
    assert chosen(model, "block.2") == ["fc1"]
    assert chosen(model) == ["conv2", "fc1", "block.0"]
    found = skipped(model, traces(model), chosen(model), by_default=True)
    (entry,) = (entry for entry in found if entry.name == "block.2")
    assert (entry.weights, entry.reason) == (0, "it has the weight of 'fc1'")


def test_weights_that_are_computed_are_left_alone_and_refused_by_name(model):
    for name in ("fc1", "block.0"):
        parametrizations.weight_norm(model.get_submodule(name))
    assert chosen(model) == ["conv2", "block.2"]
    assert reasons(model)["fc1"] == (
        "its weight is computed, so that nothing could be written to it; make it plain with "
        "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')"
    )
    assert not [name for name in reasons(model) if "parametrizations" in name]  # they would be counted twice
    with pytest.raises(ModelError, match="layer 'fc1' must hold its weight as a plain parameter"):
        chosen(model, "fc1")
    (trace,) = (trace for trace in untraced(model) if trace.name == "fc1")
    assert spared(model, trace) == "its weight is computed"


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "compute",
    [
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: parametrizations.spectral_norm(layer),
        lambda layer: prune.l1_unstructured(layer, "weight", 2),
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_the_cure_for_a_weight_that_is_computed_works(model, compute):
    compute(model.fc1)
    cure = reasons(model)["fc1"].partition("make it plain with ")[2]
    eval(cure, {"torch": torch, "layer": model.fc1})
    assert "fc1" in chosen(model)


def test_where_all_that_could_be_pruned_is_computed_the_error_has_the_cure():
    model = nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(16, 4)), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"layer '1' must hold its weight .* with .*remove_parametrizations"):
        chosen(model)


def test_what_is_left_by_the_users_choice_is_told_apart(model):
    found = skipped(model, traces(model), ["fc1", "out"], by_default=False)
    assert {entry.name for entry in found} == set(NAMES) - {"fc1", "out"}
    assert {entry.reason for entry in found} == {"it was not chosen"}
    assert sum(entry.weights for entry in found) == 18 + 2 + 16 + 16
    assert {entry.name: entry.kind for entry in found}["conv1"] == "Conv2d"


def test_tables_and_weights_of_other_kinds_are_named_with_their_size():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.places = nn.Embedding(9, 4), nn.Parameter(torch.zeros(3, 4))
            self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, ids):
            return self.out(torch.relu(self.fc(self.table(ids) + self.places)))

    ids = torch.zeros(2, 3, dtype=torch.int64)
    found = skipped(Other(), traces(Other(), ids), ["fc"], by_default=True)
    assert [(entry.name, entry.kind, entry.weights, entry.reason) for entry in found] == [
        ("out", "Linear", 8, "its outputs are the model's"),
        ("places", "Other", 12, "not a kind feta prunes"),
        ("table", "Embedding", 36, "a table that is looked up"),
    ]


# Targets


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
        ({"fc1": True}, "uniform", r"sparsity\['fc1'\] must be in"),
        ({"out": 0.5}, "uniform", r"sparsity must name layers that are chosen, got 'out' .* \['fc1'\]"),
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
