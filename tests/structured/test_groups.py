"""What hangs together, and the surgery: groups of ordinary and odd networks, held to what the network itself does."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("torch_pruning", reason="needs torch-pruning, pip install torch-pruning")

from feta.errors import ModelError
from feta.structured.groups import cut, find_groups, graph_of, without
from nets import traced


class Residual(nn.Module):
    """A stem, two blocks with projections onto one stream, and a head: as torchvision's ResNets are."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), norm(6)
        self.a, self.b = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.b(F.relu(self.a(x))))
        return self.head(x.mean((2, 3)))


class Padded(Residual):
    """The stream is wider behind the block: what is padded has a fixed width."""

    def __init__(self):
        super().__init__()
        self.b, self.head = nn.Conv2d(8, 10, 3, padding=1), nn.Linear(10, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(F.pad(x, (0, 0, 0, 0, 2, 2)) + self.b(F.relu(self.a(x))))
        return self.head(x.mean((2, 3)))


def network(*layers, names=""):
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(zip(names.split(), layers, strict=True)))


def depthwise():
    wide, deep, narrow = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 5, 1)
    return network(
        wide,
        nn.ReLU(),
        deep,
        nn.ReLU(),
        narrow,
        nn.Flatten(),
        nn.Linear(5 * 16, 2),
        names="wide r1 deep r2 narrow f out",
    )


def grouped():
    one, two = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 12, 3, padding=1, groups=4)
    return network(one, nn.ReLU(), two, nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 3), names="one r1 two r2 f out")


IMAGES = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def found(model):
    return find_groups(model.eval(), IMAGES, list(traced(model, IMAGES).values()))


def outputs(model):
    with torch.no_grad():
        return model.eval()(IMAGES)


@pytest.mark.parametrize(
    ("make", "roots"),
    [(Residual, {"a", "stem"}), (Padded, {"a"}), (depthwise, {"wide", "narrow"}), (grouped, {"one", "two"})],
)
def test_what_is_cut_out_is_as_if_nobody_read_it(make, roots):
    model = make()
    groups, refused = found(model)
    # Of layers that hang together any may be the root.
    assert len(groups) == len(roots)
    assert all(any(name in group.outputs for group in groups) for name in roots)
    assert any("the model's" in why for why in refused.values())
    gone = {group.root: torch.tensor([0, group.units - 1])[: group.units - 1] for group in groups}
    small = cut(model, IMAGES, groups, gone)
    assert torch.allclose(outputs(small), outputs(without(model, groups, gone)), atol=1e-5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


def test_a_residual_stream_goes_through_all_its_layers():
    (stream,) = (group for group in found(Residual())[0] if group.root in ("stem", "b"))
    assert set(stream.outputs) == {"stem", "b"}
    assert set(stream.inputs) == {"a", "head"}
    assert stream.units == 6


def test_a_flattened_map_is_many_inputs_for_each_channel():
    (narrow,) = (group for group in found(depthwise())[0] if group.root == "narrow")
    assert narrow.inputs["out"].shape == (5, 16)
    assert narrow.inputs["out"][2].tolist() == list(range(32, 48))


def test_channels_of_a_grouped_convolution_go_together():
    groups = {group.root: group for group in found(grouped())[0]}
    assert groups["two"].units == 3
    assert groups["two"].outputs["two"].tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert groups["one"].units == 2
    small = cut(grouped(), IMAGES, list(groups.values()), {"one": torch.tensor([1]), "two": torch.tensor([0])})
    assert (small.two.groups, small.two.weight.shape) == (4, (8, 1, 3, 3))


def test_norms_over_all_channels_are_left_alone():
    torch.manual_seed(0)
    model = Residual(norm=lambda width: nn.GroupNorm(1, width))
    groups, refused = found(model)
    assert [group.root for group in groups] == ["a"]
    assert "leaves a trace" in refused["b"]


def test_modes_frozen_weights_and_the_model_itself_stay_as_they_are():
    model = Residual()
    model.a.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model.norm.eval()
    groups = find_groups(model, IMAGES, list(traced(model, IMAGES).values()))[0]
    small = cut(model, IMAGES, groups, {group.root: torch.tensor([1]) for group in groups})
    assert (small.training, small.norm.training) == (True, False)
    assert not small.a.weight.requires_grad
    assert small.b.weight.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_that_cannot_be_refitted_keeps_its_inputs():
    model = network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), names="a r b")
    groups, refused = find_groups(model, torch.randn(2, 4), [traced(model, torch.randn(2, 4))["a"]])
    assert groups == []
    assert "b, which cannot be refitted" in refused["a"]


def test_a_model_that_cannot_be_traced():
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x.numpy().tolist())

    with pytest.raises(
        ModelError, match=r"model must be one that Torch-Pruning can trace, got TypeError.*feta\.prune"
    ):
        graph_of(Broken(3, 2), torch.randn(2, 3))
