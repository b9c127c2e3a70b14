"""Error–count curves of layers, measured on a few thousand samples.

Each layer alone is pruned in haste (allocation.haste) to a fixed grid of sparsities, on a copy of the network in
which all other layers are the original's, and held-out samples tell what that does:

    sensitivity   E_l(k) = mean over samples of  ||outputs(k) - outputs||^2
    bound         E_l(k) = g_l * root of the mean over samples of  ||rho(z_l(k)) - rho(z_l)||^2

g_l is the product of the norms of all layers that run after l, as operators. The sum of E_l is then, for layers in
a chain with functions of slope at most 1 between them, a bound on how far the outputs move. Squares of the
outputs' change add up as independent errors do; a bound has no right to that, and adds norms.

Sums hold for small errors. A layer that keeps the share s = 1 - E(k) / E(0) of what it says leaves no more to
those after it, and shares multiply; so what is added up over layers is -log s, in the curve's own unit:

    -E(0) log(1 - E(k) / E(0))  =  E(k) + E(k)^2 / 2 E(0) + ...

An empty layer, which any sum of errors may find cheap, is then out of the question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feta.allocation.budget import Curve
from feta.allocation.haste import HastyLayer
from feta.calibration.capture import LayerTap, LayerTrace
from feta.calibration.inputs import Batch, Inputs, Merged, size_of
from feta.calibration.model import call, outputs_of
from feta.calibration.stream import LayerStream, ReplaySource
from feta.errors import DataError
from feta.layers import LayerView
from feta.solvers.norms import operator_upper

GRID = (*(2.0**-power for power in range(8, 0, -1)), 0.75)  # of a layer's weights, besides 0 and 1
FIT_SAMPLES = 4096  # at the most, for the Gram matrices
FIT_ROWS = 16384  # at the most, about: a sample of a convolution gives a row for each position
HELD_SAMPLES = 512  # at the most, for the errors
LEAST_SHARE = 0.02  # of what a layer says: what is measured of less is noise


@dataclass(frozen=True)
class Probe:
    """The network, a copy to try things on, and samples to fit and to judge by."""

    original: nn.Module
    copy: nn.Module  # the same weights before and after
    device: torch.device
    dtype: torch.dtype
    fit: Inputs
    fit_samples: int
    held: list[Batch]

    @classmethod
    def of(
        cls, original: nn.Module, copy: nn.Module, inputs: Inputs, device: torch.device, dtype: torch.dtype
    ) -> Probe:
        samples = sum(size_of(batch) for batch in inputs)
        stride = -(-samples // (2 * FIT_SAMPLES))
        apart = -(-samples // (2 * HELD_SAMPLES * stride)) * 2 * stride  # even steps from an odd place
        fit = Inputs(Merged(inputs.thinned(2 * stride)))
        held = list(Merged(inputs.thinned(apart, stride))) or list(fit)  # of one sample none is held out
        return cls(original, copy, device, dtype, fit, -(-samples // (2 * stride)), held)

    def curves(self, allocation: str, traces: Sequence[LayerTrace], names: Sequence[str]) -> dict[str, Curve]:
        """What is to be added up over the layers: a curve for each that is named."""
        found = self.errors(allocation, traces, names)
        return {name: Curve(curve.counts, compounded(curve.errors)) for name, curve in found.items()}

    def errors(self, allocation: str, traces: Sequence[LayerTrace], names: Sequence[str]) -> dict[str, Curve]:
        """E_l as it was measured."""
        chosen = [trace for trace in traces if trace.name in names]
        if allocation == "sensitivity":
            judge = self._outputs_moved()
            return {trace.name: self._curve(trace, judge) for trace in chosen}
        gains = self._gains(traces)
        found = {trace.name: self._curve(trace, self._response_moved) for trace in chosen}
        return {name: _rooted(curve, gains[name]) for name, curve in found.items()}

    @torch.no_grad()
    def _curve(self, trace: LayerTrace, judge: Callable[[LayerTrace], float]) -> Curve:
        view = LayerView(self.copy.get_submodule(trace.name), trace.name)
        kept = LayerView(self.original.get_submodule(trace.name), trace.name)
        hasty = HastyLayer.of(kept, self._streams(trace, kept))
        size = kept.weight.numel()
        counts = sorted({0, *(round(share * size) for share in GRID)} - {size})
        errors = []
        try:
            for count in counts:
                hasty.write_(view, count)
                errors.append(judge(trace))
                if not math.isfinite(errors[-1]):
                    raise DataError(
                        f"layer '{trace.name}': outputs must be finite while its error is measured, got "
                        f"{errors[-1]}; look at the data and the weights"
                    )
        finally:
            for group in range(kept.groups):
                view.write(kept.matrix(group), kept.bias(group), group)
        return Curve((*counts, size), (*errors, 0.0))

    def _streams(self, trace: LayerTrace, view: LayerView) -> tuple[LayerStream, ...]:
        source = ReplaySource(self.fit, self._tap(self.original, trace), None)
        streams = [LayerStream(source, view, trace.activation, group) for group in range(view.groups)]
        first = next(iter(self.fit))
        outputs = sum(z.numel() for _, z in self._tap(self.original, trace).run(first) if z is not None)
        rows = outputs // view.weight.shape[0] * self.fit_samples // size_of(first)
        return tuple(stream.thinned(max(1, rows // FIT_ROWS)) for stream in streams)

    def _tap(self, model: nn.Module, trace: LayerTrace) -> LayerTap:
        return LayerTap(model, trace.name, trace.calls, self.device, self.dtype)

    def _outputs_moved(self) -> Callable[[LayerTrace], float]:
        """The mean squared change of the network's outputs, whatever layer of the copy is pruned."""
        before = list(self._outputs(self.original))

        def moved(trace: LayerTrace) -> float:
            after = self._outputs(self.copy)
            total = sum(_squared(now - then) for now, then in zip(after, before, strict=True))
            return total / self._samples

        return moved

    @torch.no_grad()
    def _outputs(self, model: nn.Module) -> Iterator[Tensor]:
        for batch in self.held:
            yield outputs_of(call(model, batch, self.device, self.dtype))

    def _response_moved(self, trace: LayerTrace) -> float:
        """The mean squared change of the layer's own response: its inputs are those of the original."""
        layer, total = self.original.get_submodule(trace.name), 0.0
        rho = trace.activation
        for batch in self.held:
            for x, z in self._tap(self.copy, trace).run(batch):
                if z is not None:
                    total += _squared(rho(z) - rho(layer(x)))
        return total / self._samples

    @property
    def _samples(self) -> int:
        return sum(size_of(batch) for batch in self.held)

    @torch.no_grad()
    def _gains(self, traces: Sequence[LayerTrace]) -> dict[str, float]:
        """For each layer, the product of the norms of those that run after it."""
        gains, product = {}, 1.0
        for trace in reversed(traces):
            gains[trace.name] = product
            inputs = self._tap(self.original, trace).run(self.held[0], outputs=False)[0][0]
            layer = self.original.get_submodule(trace.name)
            product *= operator_upper(layer, inputs.shape[-3:] if isinstance(layer, nn.Conv2d) else ())
        return gains


def compounded(errors: Sequence[float]) -> tuple[float, ...]:
    """-E(0) log(1 - E / E(0)) of errors that begin with E(0), the share that is kept at least LEAST_SHARE."""
    empty = errors[0]
    if empty <= 0:
        return tuple(errors)
    return tuple(-empty * math.log(max(1 - error / empty, LEAST_SHARE)) for error in errors)


def _squared(difference: Tensor) -> float:
    return float(torch.linalg.vector_norm(difference, dtype=torch.float64)) ** 2


def _rooted(curve: Curve, gain: float) -> Curve:
    return Curve(curve.counts, tuple(gain * math.sqrt(error) for error in curve.errors))
