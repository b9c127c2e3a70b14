"""Error–count curves: against pruning and running the network by hand, and what is read and restored."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nets
from feta.allocation import measure
from feta.allocation.budget import Curve
from feta.allocation.measure import GRID, HastyLayer, Probe
from feta.calibration.inputs import Inputs, size_of
from feta.calibration.model import evaluating
from feta.calibration.stream import TensorStream
from feta.errors import DataError, ModelError
from feta.layers import prunable_names

F64 = torch.float64


def mlp() -> nn.Sequential:
    return nets.mlp(9, 12, 8, 3).double()


def convnet() -> nn.Sequential:
    return nets.convnet(24, pool=nn.MaxPool2d(2, stride=1), stride=2).double()


X = torch.randn(600, 9, generator=torch.Generator().manual_seed(1), dtype=F64)
IMAGES = torch.randn(60, 2, 7, 7, generator=torch.Generator().manual_seed(2), dtype=F64)


def probe_of(model, data, cut=True):
    """Of the data a tenth to judge by, or all of it where there is little."""
    inputs = Inputs(data)
    lane, layers = nets.lane_of(model, inputs, copy.deepcopy(model), cut=cut)
    if inputs.count < 4:
        return Probe.of(lane, layers, inputs)
    judged = torch.arange(inputs.count) % 10 == 0
    lane.inputs = inputs.picked(~judged)
    return Probe.of(lane, layers, inputs.picked(judged))


def errors_of(model, data, allocation, names, cut=True):
    """E_l of each layer as the allocation measures it, before errors are compounded."""
    probe = probe_of(model, data, cut)
    with evaluating(model, probe.fit.pruned):
        found = probe.curves(names, "outputs" if allocation == "sensitivity" else "response")
        if allocation == "bound":
            gains = probe.gains()
            found = {
                name: Curve(curve.counts, tuple(gains[name] * error**0.5 for error in curve.errors))
                for name, curve in found.items()
            }
    assert all(map(torch.equal, probe.fit.pruned.parameters(), model.parameters()))
    return found, probe


def samples_of(lane):
    return torch.cat(list(lane.inputs))


def pruned_by_hand(name, probe, count):
    """The network with one layer pruned in haste, from the rows that meet that layer."""
    model, end = mlp(), {"fc1": 0, "fc2": 2}[name]
    A = mlp()[:end](samples_of(probe.fit)).detach()
    stream = TensorStream(A, A[:, :1], 1000)
    HastyLayer.of(nets.plain_frames(mlp(), name), (stream,)).write_(nets.plain_frames(model, name), count)
    return model


@pytest.mark.parametrize("cut", [True, False])
def test_sensitivity_by_hand(cut):
    found, probe = errors_of(mlp(), X, "sensitivity", ["fc2"], cut)
    held = samples_of(probe.held)
    curve = found["fc2"]
    assert list(found) == ["fc2"]
    assert curve.counts == (0, *sorted({round(share * 96) for share in GRID} - {0}), 96)
    for count, error in zip(curve.counts[:-1], curve.errors, strict=False):
        moved = pruned_by_hand("fc2", probe, count)(held) - mlp()(held)
        assert error == pytest.approx(moved.square().sum(1).mean().item(), rel=1e-6)
    assert curve.errors[-1] == 0


@pytest.mark.parametrize("cut", [True, False])
def test_bound_by_hand(cut):
    found, probe = errors_of(mlp(), X, "bound", ["fc1", "fc2"], cut)
    held, model = samples_of(probe.held), mlp()
    last, middle = (torch.linalg.matrix_norm(layer.weight, 2).item() for layer in (model.out, model.fc2))
    for name, gain, end in (("fc1", middle * last, 2), ("fc2", last, 4)):
        for count, error in zip(found[name].counts[:-1], found[name].errors, strict=False):
            moved = pruned_by_hand(name, probe, count)[:end](held) - model[:end](held)
            root = moved.square().sum(1).mean().sqrt().item()
            assert error == pytest.approx(gain * root, rel=1e-6)


@pytest.mark.parametrize(("model", "data"), [(mlp, X), (convnet, IMAGES)], ids=["mlp", "convnet"])
def test_the_bound_bounds_what_sensitivity_measures(model, data):
    """One layer alone: the outputs move no further than the layer's response times the gain."""
    names = prunable_names(model())[:-1]
    moved, _ = errors_of(model(), data, "sensitivity", names)
    bound, _ = errors_of(model(), data, "bound", names)
    for name in names:
        for squared, most in zip(moved[name].errors, bound[name].errors, strict=True):
            assert squared**0.5 <= most * (1 + 1e-9)
        assert moved[name].errors[0] > 10 * moved[name].errors[-2] >= 0


def test_segments_change_nothing():
    names = ["conv1", "conv2", "fc1"]
    for allocation in ("sensitivity", "bound"):
        cut, whole = (errors_of(convnet(), IMAGES, allocation, names, cut)[0] for cut in (True, False))
        for name in names:
            assert cut[name].counts == whole[name].counts
            assert cut[name].errors == pytest.approx(whole[name].errors, rel=1e-9)


def test_what_is_read_is_little_and_held_out():
    data = torch.arange(30_000.0)[:, None].repeat(1, 2)
    probe = probe_of(nn.Sequential(nn.Linear(2, 2)), data)
    fit, held = (samples_of(part)[:, 0] for part in (probe.fit, probe.held))
    assert 0.5 * measure.FIT_SAMPLES < len(fit) <= measure.FIT_SAMPLES
    assert 0.5 * measure.HELD_SAMPLES < len(held) <= measure.HELD_SAMPLES
    assert not set(fit.tolist()) & set(held.tolist())
    assert float(fit.max()) > 29_000 < float(held.max())  # from all over the data
    for part in (fit, held):
        counts = torch.histc(part, 10, 0, 30_000)
        assert bool(((counts - len(part) / 10).abs() < 5 * (len(part) / 10) ** 0.5).all())
    assert max(map(size_of, probe.fit.inputs)) <= 1000


def test_outputs_of_many_values_are_held_for_few_samples(monkeypatch):
    monkeypatch.setattr(measure, "HELD_VALUES", 90)  # three outputs a sample
    assert samples_of(probe_of(mlp(), X).held).shape[0] == 30


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_hardly_any_samples(samples):
    found, probe = errors_of(mlp(), X[:samples], "sensitivity", ["fc1"])
    assert sum(map(size_of, probe.held.inputs)) >= 1
    assert found["fc1"].errors[0] > 0


def test_rows_of_convolutions_are_limited(monkeypatch):
    monkeypatch.setattr(measure, "FIT_ROWS", 100)
    seen = []
    original = measure.HastyLayer.of.__func__

    def spy(cls, view, streams):
        seen.append([stream.n_rows for stream in streams])
        return original(cls, view, streams)

    monkeypatch.setattr(measure.HastyLayer, "of", classmethod(spy))
    errors_of(convnet(), IMAGES, "bound", ["conv1", "conv2", "fc1"])
    assert [len(rows) for rows in seen] == [1, 2, 1]
    assert all(10 <= count <= 150 for rows in seen for count in rows)


def test_the_response_on_some_rows_is_scaled_to_all_of_them(monkeypatch):
    """A sample of the held-out rows stands for all of them, also where a layer has many."""
    whole, _ = errors_of(convnet(), IMAGES, "bound", ["conv1", "fc1"])
    monkeypatch.setattr(measure, "FIT_ROWS", 150)  # conv1 has 49 rows a sample and 6 held-out samples
    some, _ = errors_of(convnet(), IMAGES, "bound", ["conv1", "fc1"])
    assert some["conv1"].errors[0] == pytest.approx(whole["conv1"].errors[0], rel=0.15)


def test_errors_that_are_not_finite_are_named():
    model = mlp()
    with torch.no_grad():
        model.out.weight.fill_(1e200)
    with pytest.raises(DataError, match="layer 'fc1': outputs must be finite while its error is measured"):
        errors_of(model, X, "sensitivity", ["fc1"])


class Wrapped(nn.Module):
    """A network whose answer is a mapping."""

    def __init__(self, answer):
        super().__init__()
        self.a, self.b, self.answer = nn.Linear(9, 6).double(), nn.Linear(6, 3).double(), answer

    def forward(self, x):
        return self.answer(self.b(F.relu(self.a(x))))


def test_outputs_and_inputs_in_mappings():
    data = [{"x": part, "labels": part} for part in X.split(50)]
    found, _ = errors_of(Wrapped(lambda z: {"logits": z}), data, "sensitivity", ["a"])
    assert found["a"].errors[0] > found["a"].errors[-2]
    with pytest.raises(ModelError, match="model must return a float tensor"):
        errors_of(Wrapped(lambda z: {"label": z.argmax(1)}), X, "sensitivity", ["a"])


def test_the_shift_of_a_batch_norm_makes_up_for_means_and_is_restored():
    """Behind a batch-norm a layer without a bias has one: its curve of outputs is that of the layer with a bias."""
    torch.manual_seed(0)
    data = torch.randn(300, 2, 6, 6, dtype=F64) + 2  # means that matter
    net = nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
    net = net.double().eval()
    before = copy.deepcopy(net.state_dict())
    with_shift = probe_of(net, data).curves(["0"], "outputs")["0"]
    net[1].register_parameter("bias", None)  # without a shift to write to nothing can be made up for
    without = probe_of(net, data).curves(["0"], "outputs")["0"]
    net[1].register_parameter("bias", nn.Parameter(before["1.bias"]))
    assert with_shift.errors[1] < 0.9 * without.errors[1]
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("measure_of", ["outputs", "response"])
def test_groups_cost_no_runs_of_the_network(measure_of):
    runs = [0, 0]

    class Counted(nn.Identity):
        def forward(self, x):
            runs[which] += 1
            return x

    for which, groups in enumerate((1, 8)):
        torch.manual_seed(0)
        middle = nn.Conv2d(8, 8, 3, groups=groups)
        tail = nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)
        model = nn.Sequential(nn.Conv2d(2, 8, 3), Counted(), middle, *tail).double()
        probe = probe_of(model, IMAGES, cut=False)
        before = runs[which]
        with evaluating(model, probe.fit.pruned):
            probe.curves(["2"], measure_of)
        runs[which] -= before
    assert runs[0] >= runs[1] > 0  # a layer of fewer weights is tried at fewer counts
