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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feta.allocation.budget import Curve
from feta.calibration.capture import LayerTrace
from feta.calibration.inputs import Batch, Inputs, Merged, size_of
from feta.calibration.model import call, outputs_of
from feta.calibration.statistics import gram
from feta.calibration.stream import LayerStream, ReplaySource
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
RIDGE = 0.01  # of the mean of the Gram matrix's diagonal
ITERATIONS = 4  # shares after 6 differ by a hundredth or less

Judge = Callable[[LayerTrace], float]  # how much worse the copy is while this layer of it is pruned


@dataclass(frozen=True)
class _Group:
    """One group of a layer and what its rows say: enough to fit its weights on any mask."""

    W: Tensor  # (d_in, d_out)
    bias: Tensor | None
    H: Tensor  # (d_in, d_in) with the ridge, of centred inputs where there is a bias
    C: Tensor  # (d_in, d_out): H W
    norms: Tensor  # (d_in,) of the inputs, centred likewise
    mean: Tensor  # (d_in,); zero without a bias

    @classmethod
    def of(cls, W: Tensor, bias: Tensor | None, rows: ActivationStream) -> "_Group":
        statistics = gram(rows, with_bias=bias is not None)
        H, mean = statistics.H[: len(W), : len(W)], statistics.H.new_zeros(len(W))
        if bias is not None:
            mean = statistics.H[-1, :-1] / statistics.rows
            H = H - statistics.rows * torch.outer(mean, mean)
        norms = H.diagonal().clamp_min(0).sqrt().to(W.dtype)
        H = H.to(W.dtype)
        H.diagonal().add_(RIDGE * float(norms.square().mean()))
        return cls(W, bias, H, H @ W, norms, mean.to(W.dtype))

    def at(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        start = self.W.where(mask, 0)
        U = projected_cg(lambda D: self.H @ D, self.H.diagonal(), self.C, start, mask, ITERATIONS)
        return U, None if self.bias is None else self.bias + self.mean @ (self.W - U)


@dataclass(frozen=True)
class HastyLayer:
    """All groups of one layer; `write_` puts the answer for k weights into a view of a copy of the layer."""

    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, view: LayerView, streams: Sequence[ActivationStream]) -> "HastyLayer":
        """One stream of rows per group."""
        return cls(tuple(_Group.of(view.matrix(g), view.bias(g), rows) for g, rows in enumerate(streams)))

    def write_(self, view: LayerView, count: int) -> None:
        # Selected over all groups together, as the engine shares a layer's weights over its groups.
        scores = torch.stack([group.W.abs() * group.norms[:, None] for group in self.groups])
        for index, (group, mask) in enumerate(zip(self.groups, top_k_mask(scores, count), strict=True)):
            view.write(*group.at(mask), index)


@dataclass(frozen=True)
class Probe:
    """The network, a copy to try things on, and samples to fit and to judge by."""

    original: nn.Module
    copy: nn.Module  # the same weights before and after
    traces: Mapping[str, LayerTrace]  # of every layer that runs, in order of execution
    fit: Inputs
    fit_samples: int
    held: list[Batch]

    @classmethod
    def of(cls, original: nn.Module, copy: nn.Module, traces: Sequence[LayerTrace], inputs: Inputs) -> "Probe":
        """A probe on about half of the samples to fit and some of the others to judge by."""
        samples = sum(size_of(batch) for batch in inputs)
        stride = -(-samples // (2 * FIT_SAMPLES))
        apart = -(-samples // (2 * HELD_SAMPLES * stride)) * 2 * stride  # even steps from an odd place
        fit = Inputs(Merged(inputs.thinned(2 * stride)))
        held = list(Merged(inputs.thinned(apart, stride))) or list(fit)  # of one sample none is held out
        by_name = {trace.name: trace for trace in traces}
        return cls(original, copy, by_name, fit, -(-samples // (2 * stride)), held)

    @torch.no_grad()
    def curve(self, name: str, judge: Judge) -> Curve:
        """A layer's error, as the judge sees it, at each count of the grid. Raises DataError if one is not finite."""
        trace = self.traces[name]
        view, kept = (LayerView(model.get_submodule(name), name) for model in (self.copy, self.original))
        hasty = HastyLayer.of(kept, self._streams(trace, kept))
        size = kept.weight.numel()
        counts = sorted({0, *(round(share * size) for share in GRID)} - {size})
        errors = []
        try:
            for count in counts:
                hasty.write_(view, count)
                errors.append(judge(trace))
                if not math.isfinite(errors[-1]):
                    got = f"{errors[-1]}; look at the data and the weights"
                    raise DataError(f"layer '{name}': outputs must be finite while its error is measured, got {got}")
        finally:
            for group in range(kept.groups):
                view.write(kept.matrix(group), kept.bias(group), group)
        return Curve((*counts, size), (*errors, 0.0))

    def _streams(self, trace: LayerTrace, view: LayerView) -> tuple[LayerStream, ...]:
        source = ReplaySource(self.fit, trace.tap(self.original))
        streams = [LayerStream(source, view, trace.activation, group) for group in range(view.groups)]
        first = next(iter(self.fit))
        outputs = sum(z.numel() for _, z in trace.tap(self.original).run(first))
        rows = outputs // view.weight.shape[0] * self.fit_samples // size_of(first)
        return tuple(stream.thinned(max(1, rows // FIT_ROWS)) for stream in streams)

    def outputs_moved(self) -> Judge:
        """A judge: the mean squared change of the network's outputs."""
        before = list(self._outputs(self.original))

        def moved(trace: LayerTrace) -> float:
            pairs = zip(self._outputs(self.copy), before, strict=True)
            return sum(_squared(now - then) for now, then in pairs) / self._samples

        return moved

    @torch.no_grad()
    def _outputs(self, model: nn.Module) -> Iterator[Tensor]:
        for batch in self.held:
            yield outputs_of(call(model, batch))

    def response_moved(self, trace: LayerTrace) -> float:
        """A judge: the mean squared change of the layer's own response to the inputs it has in the original."""
        layer, rho = self.original.get_submodule(trace.name), trace.activation
        seen = (pair for batch in self.held for pair in trace.tap(self.copy).run(batch))
        return sum(_squared(rho(z) - rho(layer(x))) for x, z in seen) / self._samples

    @property
    def _samples(self) -> int:
        return sum(size_of(batch) for batch in self.held)

    @torch.no_grad()
    def gains(self) -> dict[str, float]:
        """For each layer, the product of the norms of those that run after it."""
        gains, product = {}, 1.0
        for trace in reversed(list(self.traces.values())):
            gains[trace.name] = product
            inputs = trace.tap(self.original).inputs(self.held[0])[0]
            layer = self.original.get_submodule(trace.name)
            product *= operator_upper(layer, inputs.shape[-3:] if isinstance(layer, nn.Conv2d) else ())
        return gains


def _squared(difference: Tensor) -> float:
    return float(torch.linalg.vector_norm(difference, dtype=torch.float64)) ** 2
