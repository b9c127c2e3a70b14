"""Error–count curves of layers, measured on a few thousand samples.

Each layer alone is pruned in haste to a fixed grid of sparsities, on a copy of the network in which all other
layers are the original's. Held-out samples tell what that does, in the measure that the allocation asks for: the
change of the network's outputs, or of the layer's own response. In haste means cheaply and alike, not well:

    mask      the k largest |w_jo| * ||a_j - mean||
    weights   on it, a few steps of conjugate gradients towards   min ||(A - mean)(U - W)||^2 + r ||U - W||^2

The bias takes up what the means of the inputs leave. One pass for a Gram matrix serves every sparsity, and
nothing is factored. Curves of plain thresholding would overstate what a layer loses under a method that fits,
and for thresholding itself they gave no better shares (they flatten where little is left of a layer).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from feta.allocation.budget import Curve
from feta.calibration.chain import Segment
from feta.calibration.fold import Folded
from feta.calibration.inputs import Inputs, Merged, size_of
from feta.calibration.lane import Lane
from feta.calibration.model import call, outputs_of
from feta.calibration.statistics import gram
from feta.calibration.stream import LayerStream, Source, TensorStream, Through, sampled
from feta.calibration.trace import LayerTrace
from feta.errors import DataError
from feta.layers import LayerView
from feta.problem import ActivationStream
from feta.solvers.norms import operator_upper
from feta.solvers.refit import projected_cg
from feta.sparsity import top_k_mask

GRID = (*(2.0**-power for power in range(8, 0, -1)), 0.75)  # of a layer's weights, besides 0 and 1
FIT_SAMPLES = 4096  # at the most, for the Gram matrices
FIT_ROWS = 16384  # at the most, about: a sample of a convolution gives a row for each position
HELD_SAMPLES = 512  # at the most, for the errors
HELD_VALUES = 2**26  # entries of the network's outputs on them, at the most: a language model's are many
RIDGE = 0.01  # of the mean of the Gram matrix's diagonal
ITERATIONS = 4  # shares after 6 differ by a hundredth or less

Measure = Literal["outputs", "response"]
Tell = Callable[[str, int, int], None]  # the layer that is measured, how many were before it, and of how many


@dataclass(frozen=True)
class HastyLayer:
    """All groups of one layer and what their rows say: enough to fit its weights on any mask."""

    W: Tensor  # (groups, d_in, d_out)
    bias: Tensor | None  # (groups, d_out)
    H: Tensor  # (groups, d_in, d_in) with the ridge, of centred inputs where there is a bias
    C: Tensor  # (groups, d_in, d_out): H W
    norms: Tensor  # (groups, d_in) of the inputs, centred likewise
    mean: Tensor  # (groups, d_in); zero without a bias

    @classmethod
    def of(cls, frames: Sequence[Folded], streams: Sequence[ActivationStream]) -> "HastyLayer":
        """One frame and one stream of rows per group."""
        W, bias = torch.stack([frame.W for frame in frames]), [frame.bias for frame in frames]
        biases = [own for own in bias if own is not None]
        found = [gram(rows, with_bias=bool(biases)) for rows in streams]
        H, rows = torch.stack([one.H for one in found]), found[0].rows
        mean = H.new_zeros(W.shape[:2])
        if biases:
            mean = H[:, -1, :-1] / rows
            H = H[:, :-1, :-1] - rows * mean[:, :, None] * mean[:, None]
        norms = H.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().to(W.dtype)
        H = H.to(W.dtype, copy=True)
        H.diagonal(dim1=1, dim2=2).add_(RIDGE * norms.square().mean(1, keepdim=True))
        return cls(W, torch.stack(biases) if biases else None, H, H @ W, norms, mean.to(W.dtype))

    def write_(self, frames: Sequence[Folded], count: int) -> None:
        """Put the answer for `count` weights into a copy of the layer, seen in frames."""
        # Selected over all groups together, as the engine shares a layer's weights over its groups.
        mask = top_k_mask(self.W.abs() * self.norms[:, :, None], count)
        start, diagonal = self.W.where(mask, 0), self.H.diagonal(dim1=1, dim2=2)
        U = projected_cg(lambda D: self.H @ D, diagonal, self.C, start, mask, ITERATIONS)
        moved = (self.mean[:, None] @ (self.W - U))[:, 0]
        for group, frame in enumerate(frames):
            frame.write(U[group], None if self.bias is None else self.bias[group] + moved[group])


@dataclass
class Probe:
    """The network and a copy to try things on, on samples to fit and to judge by."""

    fit: Lane
    held: Lane
    layers: Sequence[LayerTrace]
    tell: Tell | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, lane: Lane, layers: Sequence[LayerTrace], held: Inputs, tell: Tell | None = None) -> "Probe":
        """A probe on some of a lane's samples to fit, and on some held-out ones to judge by."""
        fit = lane.inputs.drawn(-(-lane.inputs.count // FIT_SAMPLES))
        values = max(1, outputs_of(call(lane.original, first := next(iter(held)))).numel() // size_of(first))
        most = max(1, min(HELD_SAMPLES, HELD_VALUES // values))
        some = held.drawn(-(-held.count // most))
        ranks = lane.inputs.ranks
        merged = (Inputs(Merged(part.whole), model=lane.original).share(ranks) for part in (fit, some))
        one, other = (replace(lane, inputs=part) for part in merged)
        return cls(one, other, layers, tell)

    @torch.no_grad()
    def curves(self, names: Sequence[str], measure: Measure) -> dict[str, Curve]:
        """Each layer's error at each count of the grid: of the network's outputs, or of the layer's own response.

        Mean squared changes over held-out samples. Raises DataError if one is not finite.
        """
        fit, held = (replace(lane, _states=[None, None], _extras=[None, None]) for lane in (self.fit, self.held))
        segments, found = held.chain.segments(self.layers, names), dict[str, Curve]()
        outputs = measure == "outputs"
        before = list(_outputs(held, segments)) if outputs else []
        for index, segment in enumerate(segments):
            for trace in segment.layers:
                if self.tell is not None:
                    self.tell(trace.name, len(found), len(names))
                found[trace.name] = self._curve(trace, fit, held, segments[index:], before if outputs else None)
            if len(found) == len(names):
                break
            fit.advance(segment)
            held.advance(segment)
        return found

    def _curve(
        self, trace: LayerTrace, fit: Lane, held: Lane, ahead: Sequence[Segment], before: Sequence[Tensor] | None
    ) -> Curve:
        name, samples = trace.name, held.inputs.count
        view, kept = (LayerView.of(model, name, trace.operator) for model in (held.pruned, held.original))
        frames = _frames(view, trace, held.pruned, with_norm=before is not None)
        hasty = HastyLayer.of(frames, sampled(_streams(fit, ahead[0], trace, kept), FIT_ROWS))
        streams = [] if before is not None else _streams(held, ahead[0], trace, kept)
        rows = sampled(streams, FIT_ROWS) if streams else []
        share = sum(part.n_rows for part in rows) / max(1, sum(stream.n_rows for stream in streams))
        size = kept.weight.numel()
        counts = sorted({0, *(round(share * size) for share in GRID)} - {size})
        errors = []
        try:
            for count in counts:
                _restore(trace, held)
                hasty.write_(frames, count)
                if before is not None:
                    moved = zip(_outputs(held, ahead, 1), before, strict=True)
                    own = (_squared(now - then) for now, then in moved)
                    errors.append(held.inputs.ranks.exactly(own) / samples)
                else:
                    errors.append(_response(view, trace, rows) / share / samples)
                if not math.isfinite(errors[-1]):
                    got = f"{errors[-1]}; look at the data and the weights"
                    raise DataError(f"layer '{name}': outputs must be finite while its error is measured, got {got}")
        finally:
            _restore(trace, held)
        return Curve((*counts, size), (*errors, 0.0))

    def gains(self) -> dict[str, float]:
        """For each layer, the product of the norms of those that run after it."""
        gains, product, model = {}, 1.0, self.fit.original
        for trace in reversed(self.layers):
            gains[trace.name] = product
            product *= operator_upper(model.get_submodule(trace.name), trace.shape if trace.operator.spatial else ())
        return gains


def _frames(view: LayerView, trace: LayerTrace, model: nn.Module, with_norm: bool) -> list[Folded]:
    """The groups of a layer; its outputs are judged behind a batch-norm, whose shift then makes up for means."""
    if with_norm:
        return [Folded.of(view, group, trace, model, trace.follow.activation) for group in range(view.groups)]
    return [Folded(view, group, Through(trace.activation)) for group in range(view.groups)]


@torch.no_grad()
def _restore(trace: LayerTrace, lane: Lane) -> None:
    """The copy's layer as the original's, its batch-norm included."""
    copy, own = (LayerView.of(model, trace.name, trace.operator) for model in (lane.pruned, lane.original))
    copy.weight.copy_(own.weight)
    if copy.bias_parameter is not None and own.bias_parameter is not None:
        copy.bias_parameter.copy_(own.bias_parameter)
    if trace.follow.norm is not None:
        one, other = (model.get_submodule(trace.follow.norm) for model in (lane.pruned, lane.original))
        one.bias.copy_(other.bias)  # type: ignore[operator, arg-type]


def _streams(lane: Lane, segment: Segment, trace: LayerTrace, view: LayerView) -> list[LayerStream]:
    source = Source(lane, segment, [trace], cascaded=False)
    return [LayerStream(source, view, Through(trace.activation), group) for group in range(view.groups)]


def _outputs(lane: Lane, segments: Sequence[Segment], side: int = 0) -> Iterator[Tensor]:
    """The outputs of a network from where the lane stands, through the segments that are left."""
    for batch, state in lane.items(0):
        for segment in segments:
            state = lane.chain.run((lane.original, lane.pruned)[side], segment, batch, state)
        yield outputs_of(state)


def _response(view: LayerView, trace: LayerTrace, rows: Sequence[TensorStream]) -> float:
    """The squared change of a layer's own response to the inputs it has in the original."""
    total = 0.0
    for group, stream in enumerate(rows):
        U, bias = view.matrix(group), view.bias(group)
        for A, B in stream.chunks():
            total += _squared(trace.activation(A @ U if bias is None else torch.addmm(bias, A, U)) - B)
    return total


def _squared(difference: Tensor) -> float:
    return float(torch.linalg.vector_norm(difference, dtype=torch.float64)) ** 2
