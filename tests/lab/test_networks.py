"""The paper's notation: what it builds, and what it says to mistakes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feta.errors import ConfigError
from feta_lab.data.catalog import CATALOG
from feta_lab.networks import PRESETS, build, narrowed, preset

SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar-10": (3, 32, 32)}

# Counted by hand from the notation: weights and biases of every layer.
PARAMETERS = {
    "dense-mnist": 784 * 60 + 60 + 60 * 60 + 60 + 610,
    "conv-mnist": 520 + 25_050 + 2450 * 500 + 500 + 75_150 + 1510,
    "dense-fashion": 78_500 + 10_100 + 1010,
    "conv-fashion": 320 + 9248 + 18_496 + 36_928 + 3136 * 512 + 512 + 65_664 + 1290,
    "dense-cifar": 307_300 + 10_100 + 1010,
    "conv-cifar": 896 + 9248 + 18_496 + 36_928 + 73_856 + 147_584 + 2048 * 1024 + 1024 + 524_800 + 5130,
    "dense-mnist-wide": 235_500 + 30_100 + 1010,
    "dense-fashion-wide": 392_500 + 100_200 + 2010,
    "dense-cifar-wide": 3_073_000 + 400_400 + 4010,
}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets(name):
    known = preset(name)
    assert known.data in CATALOG
    shape = SHAPES[known.data]
    model = build(known.specification, shape, seed=0)
    assert model(torch.zeros(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


def test_layer_names_follow_the_notation():
    model = build("20C5-MP2-50C5-MP2-500FC-150FC-10SM", (1, 28, 28))
    named = [name for name, module in model.named_children() if list(module.parameters())]
    assert named == ["conv1", "conv2", "fc1", "fc2", "softmax"]
    assert (model.conv2.in_channels, model.conv2.out_channels, model.conv2.kernel_size) == (20, 50, (5, 5))
    assert (model.fc1.in_features, model.fc2.out_features, model.softmax.out_features) == (2450, 150, 10)
    kinds = [type(module).__name__ for module in model]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d"] * 2 + ["Flatten"] + ["Linear", "ReLU"] * 2 + ["Linear"]
    assert build("2C3-MP2-10SM", (1, 7, 9)).softmax.in_features == 2 * 3 * 4  # poolings round down


layers = st.lists(st.sampled_from(["4C3", "2C1", "3C5", "MP2"]), max_size=4)
dense = st.lists(st.integers(1, 30).map(lambda k: f"{k}FC"), max_size=3)


@given(layers, dense, st.integers(1, 12))
def test_the_notation_can_be_read_back_from_the_layers(maps, hidden, classes):
    specification = "-".join([*maps, *hidden, f"{classes}SM"])
    model = build(specification, (2, 16, 16), seed=0)
    tokens = []
    for name, module in model.named_children():
        if isinstance(module, nn.Conv2d):
            tokens.append(f"{module.out_channels}C{module.kernel_size[0]}")
        elif isinstance(module, nn.MaxPool2d):
            tokens.append(f"MP{module.kernel_size}")
        elif isinstance(module, nn.Linear):
            tokens.append(f"{module.out_features}{'SM' if name == 'softmax' else 'FC'}")
    assert "-".join(tokens) == specification
    assert model(torch.zeros(3, 2, 16, 16)).shape == (3, classes)


@pytest.mark.parametrize(
    ("specification", "message"),
    [
        ("", "token 1 '' must be kCq"),
        ("60FC-sixtyFC-10SM", "token 2 'sixtyFC' must be kCq (convolution), MPk (max-pooling), kFC"),
        ("60FC--10SM", "token 2 '' must be kCq"),
        *(
            (f"{token}-10SM", f"token 1 '{token}' must be kCq")
            for token in ("0FC", "20C", "20C0", "60fc", "60FC 9SM")
        ),
        ("60FC-60FC", "token 2 '60FC' must be the softmax layer kSM: a network ends in one"),
        ("10SM-60FC", "token 1 '10SM' must come last: nothing follows the softmax layer"),
        ("10SM-10SM", "token 1 '10SM' must come last"),
        ("60FC-20C5-10SM", "token 2 '20C5' must come before the first fully connected layer"),
        ("60FC-MP2-10SM", "token 2 'MP2' must come before the first fully connected layer"),
        ("MP2-MP2-MP2-10SM", "token 3 'MP2' pools a 1 x 1 map to nothing; use fewer or smaller poolings"),
        ("2C3-MP9-10SM", "token 2 'MP9' pools a 4 x 4 map to nothing"),
    ],
)
def test_mistakes_are_placed_and_explained(specification, message):
    with pytest.raises(ConfigError) as caught:
        build(specification, (1, 4, 4))
    assert str(caught.value).startswith(f"network '{specification}': ")
    assert message in str(caught.value)


def test_unknown_preset():
    with pytest.raises(ConfigError, match="unknown preset 'dense-mnits'; did you mean 'dense-mnist'"):
        preset("dense-mnits")


def test_a_seed_fixes_the_weights_and_leaves_the_callers_generator_alone():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second, third = (build("8FC-3SM", (1, 4, 4), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.fc1.weight, third.fc1.weight)
    torch.manual_seed(0)
    assert torch.equal(first.fc1.weight, build("8FC-3SM", (1, 4, 4)).fc1.weight)


@pytest.mark.parametrize("name", ["dense-mnist", "conv-cifar"])
def test_the_notation_of_a_narrower_network(name):
    wide, shape = preset(name).specification, SHAPES[preset(name).data]
    assert narrowed(wide, build(wide, shape, seed=0)) == wide
    small = wide.replace("60FC-60FC", "29FC-53FC").replace("32C3-MP2", "7C3-MP2").replace("512FC", "100FC")
    assert small != wide
    assert narrowed(wide, build(small, shape, seed=0)) == small
