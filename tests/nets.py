"""Small networks with named layers, for tests that prune."""

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import nn

from feta.calibration.model import run_on
from feta.calibration.tap import Caught, Tap
from feta.calibration.trace import LayerTrace, record, trace_layers
from feta.layers import LayerView


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
