"""Which units of each group to give up: the ones that the layers behind can make up for (solvers.elimination)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feta.calibration.fold import Folded
from feta.calibration.statistics import gram
from feta.calibration.stream import LayerStream, Source
from feta.calibration.trace import LayerTrace
from feta.engine.run import Run
from feta.layers import LayerView
from feta.solvers.elimination import RIDGE, Reader, eliminate
from feta.structured.groups import Group

STARVED, MOST = 0.1, 0.1  # the ridge of a layer with one row for each input, and at the most


class Order(NamedTuple):
    """The units of a group in the order in which they go, and the error after each."""

    units: list[int]
    errors: list[float]


def orders(run: Run, groups: Sequence[Group], importance: Mapping[str, Tensor]) -> dict[str, Order]:
    """The order of every group, by its root.

    Errors are those of the model's outputs, as far as the importance of the layers' outputs tells: a sum over what
    one sample gives.
    """
    readers: dict[str, list[Reader]] = {group.root: [] for group in groups}
    traces = {trace.name: trace for trace in run.layers}
    read = {name for group in groups for name in group.inputs}
    assert run.fit is not None
    lane, left = run.lanes()[0], len(read)
    for segment in run.chain.segments(run.layers, read):
        with run.walking((lane,), segment):
            for layer in segment.layers:
                source = Source(lane, segment, [layer], cascaded=False)
                if layer.routed and source.empty(layer.name):
                    continue
                for group in groups:
                    if layer.name in group.inputs:
                        readers[group.root] += _readers(run, traces[layer.name], source, group, importance)
            left -= len(segment.layers)
            if not left:
                break
            lane.advance(segment)
    return {root: Order(*eliminate(found)) for root, found in readers.items() if found}


def _readers(
    run: Run, trace: LayerTrace, source: Source, group: Group, importance: Mapping[str, Tensor]
) -> list[Reader]:
    """A layer as it reads a group's units: one for each group of a convolution."""
    view, found = LayerView.of(run.original, trace.name, trace.operator), []
    channels = group.inputs[trace.name].to(run.device)
    weights = importance.get(trace.name)
    for part in range(view.groups):
        frame = Folded.of(view, part, trace, run.original, trace.follow.activation)
        stream = LayerStream(source, view, frame.through, part)
        bias = frame.bias
        sums = gram(stream, with_bias=bias is not None)
        W = frame.W if bias is None else torch.cat([frame.W, bias[None]])
        own = None if weights is None else view.part(weights, part).to(W.device)
        rows = input_rows(view, channels.flatten(), part).reshape(group.units, -1)
        assert run.fit is not None
        # Where rows are few anything could be fitted to them: more of a ridge, or units would look free to go.
        ridge = min(max(RIDGE, STARVED * len(W) / sums.rows), MOST)
        found.append(Reader.of(sums.H / run.fit.count, W, rows, own, ridge))
    return found


def input_rows(view: LayerView, channels: Tensor, part: int = 0) -> Tensor:
    """The rows of a layer's matrix (n, kernel) that read those of the channels that belong to one group of it."""
    width = view.weight.shape[0 if view.operator.transposed else 1]
    kernel = view.d_in // width
    own = channels - part * width
    own = own[(own >= 0) & (own < width)]
    return own[:, None] * kernel + torch.arange(kernel, device=own.device)
