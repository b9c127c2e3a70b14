"""A layer seen at another scale: its inputs and weights times powers of two, which cost no digit.

    rho(A W + bias) = B     is     rho((2^a A)(2^w W) + 2^(a + w) bias) = 2^(a + w) B

where rho(c z) = c rho(z) for c > 0; for other activations a + w is 0. Squares and products of very small or very
large numbers leave float32's range, and some methods have constants that are meant for numbers of ordinary size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from feta.calibration.statistics import number_of, ranks_of
from feta.calibration.stream import TensorStream
from feta.layers import cast
from feta.problem import Activation, ActivationStream, LayerProblem, LayerSolution, Rows
from feta.ranks import Ranks

HOMOGENEOUS = (Activation.RELU, Activation.LINEAR, Activation.LEAKY_RELU)
MOST = 120  # the largest power of two that is used: float32 ends at 127
ROOM = 40  # for outputs: they are multiplied by inputs and added up over all rows

Window = tuple[int, int]  # powers of two between which a size is left as it is
ORDINARY: Window = (-20, 20)


class Scale(NamedTuple):
    """The powers of two for a layer's inputs and for its weights."""

    inputs: int = 0
    weights: int = 0

    @property
    def outputs(self) -> int:
        return self.inputs + self.weights

    def seen(self, problem: LayerProblem) -> LayerProblem:
        """The problem at this scale."""
        bias = None if problem.bias is None else exactly(problem.bias, self.outputs)
        W = exactly(problem.W, self.weights)
        return replace(problem, W=W, bias=bias, stream=ScaledStream(problem.rows, self))

    def back(self, found: LayerSolution) -> LayerSolution:
        """A solution of the problem at this scale as one of the problem itself."""
        bias = None if found.bias is None else exactly(found.bias, -self.outputs)
        return replace(found, U=exactly(found.U, -self.weights), bias=bias)


def scale_for(
    problem: LayerProblem, inputs: float, weights: float, outputs: float, windows: tuple[Window, Window]
) -> Scale:
    """What brings sizes outside their windows into the middle of them, if the activation and the outputs let it."""
    a, w = (_power(size, window) for size, window in zip((inputs, weights), windows, strict=True))
    if problem.activation not in HOMOGENEOUS:
        return Scale(a, -a)
    # Outputs that a huge bias makes must stay in range too, and so must their sums.
    return Scale(a, max(-MOST - a, min(w, MOST - a, ROOM - a - math.frexp(outputs)[1])))


def extreme_scale(problem: LayerProblem) -> Scale:
    """The scale for a layer whose numbers are far from ordinary, by its weights and its first rows."""
    first = next(problem.rows.chunks(), None)
    own = None if first is None else tuple(map(_largest, first))
    inputs, output = ranks_of(problem.rows).earliest(number_of(problem.rows), own) or (0.0, 0.0)
    weights, outputs = _largest(problem.W), (output, 0.0 if problem.bias is None else _largest(problem.bias))
    if not all(math.isfinite(size) for size in (inputs, weights, *outputs)):
        return Scale()  # refused where the data is read
    return scale_for(problem, inputs, weights, max(outputs), (ORDINARY, ORDINARY))


def _largest(part: Tensor) -> float:
    return float(part.abs().max()) if part.numel() else 0.0


def _power(size: float, window: Window) -> int:
    power = math.frexp(size)[1]
    if size == 0 or window[0] <= power <= window[1]:
        return 0
    return max(-MOST, min(MOST, sum(window) // 2 - power))


@dataclass(frozen=True)
class ScaledStream:
    """A stream at another scale."""

    stream: ActivationStream
    scale: Scale

    @property
    def n_rows(self) -> int:
        return self.stream.n_rows

    @property
    def rho(self) -> Activation:
        return self.stream.rho

    @property
    def ranks(self) -> Ranks:
        return ranks_of(self.stream)

    def rows(self) -> Iterator[Rows]:
        for A, Z, R in self.stream.rows():
            added = None if R is None else _times(R, self.scale.outputs)
            yield Rows(_times(A, self.scale.inputs), _times(Z, self.scale.outputs), added)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for A, B in self.stream.chunks():
            yield _times(A, self.scale.inputs), _times(B, self.scale.outputs)

    def inputs(self) -> Iterator[Tensor]:
        for A in self.stream.inputs():
            yield _times(A, self.scale.inputs)

    def sampled(self, size: int) -> TensorStream:
        held: TensorStream = self.stream.sampled(size)  # type: ignore[assignment]
        A, B = _times(held.A, self.scale.inputs), _times(held.B, self.scale.outputs)
        R = None if held.R is None else _times(held.R, self.scale.outputs)
        return replace(held, A=A, B=B, R=R)


def _times(tensor: Tensor, power: int) -> Tensor:
    return tensor if power == 0 else tensor * 2.0**power


def exactly(tensor: Tensor, power: int) -> Tensor:
    """A tensor times 2^power: what is finite stays finite, and what is not zero stays so."""
    return tensor if power == 0 else cast(tensor.double() * 2.0**power, tensor.dtype)
