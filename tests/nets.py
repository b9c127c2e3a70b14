"""Small networks with named layers, for tests that prune."""

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import nn

from feta.calibration.chain import Chain, find_chain
from feta.calibration.fold import Folded
from feta.calibration.hold import Room
from feta.calibration.inputs import Inputs
from feta.calibration.lane import Lane
from feta.calibration.model import evaluating, place, run_on
from feta.calibration.recording import record
from feta.calibration.stream import LayerStream, Source, Through
from feta.calibration.tap import Caught, Tap
from feta.calibration.trace import LayerTrace, trace_layers
from feta.layers import LayerView
from feta.problem import Activation


def mlp(*widths: int, seed: int = 0) -> nn.Sequential:
    """fc1, relu1, fc2, relu2, …, out."""
    torch.manual_seed(seed)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (d_in, d_out) in enumerate(pairwise(widths[:-1]), 1):
        layers |= {f"fc{i}": nn.Linear(d_in, d_out), f"relu{i}": nn.ReLU()}
    return nn.Sequential(layers | {"out": nn.Linear(*widths[-2:])})


def convnet(features: int, *, norm: nn.Module | None = None, pool: nn.Module | None = None, stride: int = 1):
    """Two convolutions, the second one in two groups, and two Linear layers, the first of which reads `features`."""
    torch.manual_seed(0)
    layers = {"conv1": nn.Conv2d(2, 4, 3, padding=1), "norm": norm or nn.Identity(), "relu1": nn.ReLU()}
    layers |= {"conv2": nn.Conv2d(4, 6, 3, groups=2, stride=stride), "relu2": nn.ReLU()}
    layers |= {"pool": pool or nn.Identity(), "flatten": nn.Flatten()}
    layers |= {"fc1": nn.Linear(features, 5), "relu3": nn.ReLU(), "out": nn.Linear(5, 3)}
    return nn.Sequential(OrderedDict(layers))


def traced(model: nn.Module, batch) -> dict[str, LayerTrace]:
    """The layers that run, by name, in order of execution."""
    return {trace.name: trace for trace in trace_layers(record(model, batch))}


def caught(model: nn.Module, batch, name: str = "") -> tuple[LayerView, list[Caught]]:
    """A layer, and what each of its calls is given and gives."""
    trace = traced(model, batch)[name]
    calls = Tap(model, [trace]).run(lambda: run_on(model, batch), outputs=True, shortcuts=True)[name]
    return LayerView.of(model, name, trace.operator), calls


def lane_of(
    model: nn.Module, inputs: Inputs, pruned: nn.Module | None = None, *, cut: bool = True, room: float = 1e9
):
    """A model and a pruned one at the start of some samples, cut into segments or not, and the model's layers."""
    batch, chain = next(iter(inputs)), Chain()
    with evaluating(model):
        recording = record(model, batch)
        layers = trace_layers(recording)
        if cut:
            chain = find_chain(recording, layers, place(batch, torch.device("cpu"), next(model.parameters()).dtype))
    return Lane(chain, inputs, model, model if pruned is None else pruned, Room(torch.device("cpu"), room)), layers


def stream_of(model: nn.Module, name: str, inputs: Inputs, pruned: nn.Module | None = None, **options) -> LayerStream:
    """The rows of one layer: the model runs for each pass, as a whole."""
    lane, layers = lane_of(model, inputs, pruned, cut=False)
    (trace,) = (layer for layer in layers if layer.name == name)
    source = Source(lane, lane.chain.segments(layers)[0], [trace], cascaded=pruned is not None)
    view = LayerView.of(lane.pruned, name, trace.operator)
    through = options.pop("through", Through(options.pop("activation", Activation.RELU)))
    return LayerStream(source, view, through, **options)


def plain_frames(model: nn.Module, name: str) -> list[Folded]:
    """The groups of a layer, each seen alone."""
    view = LayerView.of(model, name)
    return [Folded(view, group, Through(Activation.LINEAR)) for group in range(view.groups)]
