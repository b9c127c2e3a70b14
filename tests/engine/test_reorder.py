"""Inputs in another order: the same function, the user's model as it was, and only where nothing else is touched."""

import copy

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn import functional as F

import feta
from feta.calibration.links import find_links, reorder_
from feta.calibration.recording import record
from feta.calibration.trace import trace_layers
from feta.layers import LayerView
from feta.patterns import NofM
from nets import mlp
from odd_networks import cases, run

X = torch.randn(60, 12, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(24, 4, 6, 6, generator=torch.Generator().manual_seed(2))


def convnet():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    norm.running_mean, norm.running_var = torch.randn(8), torch.rand(8) + 0.5
    norm.weight.data, norm.bias.data = torch.randn(8), torch.randn(8)
    first = [nn.Conv2d(4, 8, 3), norm, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout()]
    return nn.Sequential(*first, nn.Conv2d(8, 8, 2), nn.GELU(), nn.Flatten(), nn.Linear(8, 3)).eval()


def links_of(model, batch):
    recording = record(model, batch)
    return find_links(recording, trace_layers(recording))


class Shared(nn.Module):
    """What fc1 gives is read by fc2 and by a sum; what fc3 gives by fc4 alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for i in range(1, 5):
            setattr(self, f"fc{i}", nn.Linear(12, 12))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = x + self.fc2(x)
        return self.fc4(torch.tanh(self.fc3(x)))


def test_links_are_found_through_what_treats_channels_alone():
    links = links_of(convnet(), IMAGES[:2])
    assert {name: (link.before, link.norms) for name, link in links.items()} == {"5": ("0", ("1",))}
    assert set(links_of(mlp(12, 8, 16, 3), X[:2])) == {"fc2", "out"}


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Shared(), {"fc4"}),
        (nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)), set()),
        (nn.Sequential(nn.Linear(12, 8), nn.PReLU(8), nn.Linear(8, 3)), set()),
        (nn.Sequential(nn.Linear(12, 8), nn.Softmax(-1), nn.Linear(8, 3)), set()),
        (nn.Sequential(layer := nn.Linear(12, 12), nn.ReLU(), layer, nn.ReLU(), nn.Linear(12, 3)), set()),
    ],
)
def test_where_something_else_is_touched_there_is_no_link(model, found):
    assert set(links_of(model, X[:2])) == found


@pytest.mark.parametrize("which", ["dense", "convolutions", "shared"])
def test_the_function_stays(which):
    model, data = {"dense": (mlp(12, 8, 16, 3), X), "shared": (Shared(), X)}.get(which, (convnet(), IMAGES))
    before, links = model(data).detach(), links_of(model, data[:2])
    assert links
    for name, link in links.items():
        width = model.get_submodule(name).weight.shape[1]
        reorder_(model, link, torch.randperm(width, generator=torch.Generator().manual_seed(3)))
    torch.testing.assert_close(model(data).detach(), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["dense", "convolutions"])
def test_pruning_reorders_a_copy_alone(which):
    model, data = (mlp(12, 8, 16, 3), X) if which == "dense" else (convnet(), IMAGES)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layer = "fc2" if which == "dense" else "5"
    result = feta.prune(model, data, method="wanda", pattern="2:4", layers=layer)
    assert list(result.report.reordered) == [layer]
    assert f"with the outputs of the layers before: {layer}" in repr(result)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    plain = feta.prune(
        model, data, method="wanda", pattern="2:4", layers=layer, settings=feta.Settings(reorder=False)
    )
    assert (plain.report.reordered, len(result.report.layers)) == ({}, 1)
    assert result.report.layers[0].nonzeros == plain.report.layers[0].nonzeros


def test_more_of_the_weights_that_matter_is_kept():
    def energy(result):
        weight, inputs = result.model.fc2.weight.detach(), result.model.relu1(result.model.fc1(X)).detach()
        return float((weight.square() * inputs.square().mean(0)).sum())

    model = mlp(12, 32, 16, 3, seed=2)
    kept = [
        energy(
            feta.prune(model, X, method="wanda", pattern="1:4", layers="fc2", settings=feta.Settings(reorder=which))
        )
        for which in (False, True)
    ]
    assert kept[1] > 1.02 * kept[0]


def test_an_effort_from_reordered_networks():
    result = feta.prune(mlp(12, 8, 16, 3), X, pattern="2:4", seconds=2)
    assert list(result.report.reordered) == ["fc2"]
    assert [layer.nonzeros for layer in result.report.layers] == [48, 64]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(max_examples=40)
@given(cases())
def test_the_function_of_odd_networks_stays(case):
    model = copy.deepcopy(case.model).eval()
    before, links = run(model, case.rows), links_of(model, copy.deepcopy(case.rows))
    for name, link in links.items():
        width = model.get_submodule(name).weight.shape[1]
        reorder_(model, link, torch.randperm(width, generator=torch.Generator().manual_seed(3)))
    torch.testing.assert_close(run(model, case.rows), before, rtol=1e-9, atol=1e-9)
    result = feta.prune(case.model, case.data, method="threshold", pattern="1:2", layers="*")
    for name in result.masks:
        view = LayerView.of(result.model, name)
        alive = view.flat(view.weight != 0)
        assert not (alive & ~NofM(1, 2).over(view.taps).mask(alive.float())).any()
