"""One stage of a relaxed network: what is known of its inputs, forwards and backwards.

Forward, `after` encloses a stage's outputs, given an enclosure of its inputs. Backward, `back` turns rows on
the outputs into rows on the inputs and a constant, so that

    <rows, outputs>  >=  <rows', inputs> + constant        for all inputs that are possible
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.certificates.envelopes import Envelope
from feta.certificates.rounding import OUTWARD
from feta.certificates.rows import row_norms
from feta.certificates.stages import Affine, AvgPool, Flatten, MaxPool, ReLU


@dataclass(frozen=True, eq=False)
class Known:
    """What holds of values in the ball: low <= a <= high, and ||a - centre||_2 <= spread."""

    centre: Tensor  # (n, ...)
    low: Tensor
    high: Tensor
    spread: Tensor  # (n,)

    def minimum(self, rows: Tensor) -> Tensor:
        """(n, R): at most <row, a> for every a that is possible; rows (n, R, ...)."""
        flat = rows.flatten(2)
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        in_box = dot(flat, middle) - dot(flat.abs(), half)
        lengths = torch.linalg.vector_norm(flat, dim=2)
        return torch.maximum(in_box, dot(flat, self.centre) - OUTWARD * lengths * self.spread[:, None])

    def largest(self) -> Tensor:
        return torch.maximum(self.high.abs(), self.low.abs())

    def with_box(self, low: Tensor, high: Tensor) -> Known:
        """The smaller of both boxes, and no more spread than its corners have."""
        low, high = torch.maximum(low, self.low), torch.minimum(high, self.high)
        corner = length(torch.maximum(high - self.centre, self.centre - low))
        return Known(self.centre, low, high, torch.minimum(self.spread, corner * OUTWARD))


@dataclass(frozen=True, eq=False)
class LinearStep:
    """A W + b, computed with an error within a box."""

    stage: Affine | AvgPool
    before: Known
    error: Tensor

    def after(self) -> Known:
        stage, known, error = self.stage, self.before, self.error
        centre = stage.apply(known.centre)
        spread = (stage.lipschitz * known.spread + length(error)) * OUTWARD
        middle, half = stage.apply((known.high + known.low) / 2), (known.high - known.low) / 2
        half = (stage.apply_abs(half) if isinstance(stage, Affine) else stage.apply(half)) + error
        reach = error + row_norms(stage) * known.spread.view(-1, *[1] * (centre.ndim - 1)) * OUTWARD
        return Known(centre, centre - reach, centre + reach, spread).with_box(middle - half, middle + half)

    def back(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        constant = -dot(rows.abs().flatten(2), self.error)
        if isinstance(self.stage, Affine):
            per_channel = rows.flatten(3).sum(3) if rows.ndim > 3 else rows
            constant += per_channel @ self.stage.bias
        return _transposed(self.stage, rows), constant


@dataclass(frozen=True, eq=False)
class BentStep:
    """ReLU or max-pooling, between two lines."""

    stage: ReLU | MaxPool
    before: Known
    envelope: Envelope

    def after(self) -> Known:
        return _monotone(self.stage, self.before)

    def back(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.envelope.back(rows)


@dataclass(frozen=True, eq=False)
class ShapeStep:
    """The same numbers in another shape."""

    stage: Flatten
    before: Known

    def after(self) -> Known:
        return _monotone(self.stage, self.before)

    def back(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return _transposed(self.stage, rows), rows.new_zeros(rows.shape[:2])


Step = LinearStep | BentStep | ShapeStep


def lower(steps: Sequence[Step], rows: Tensor, *, everywhere: bool = True) -> Tensor:
    """(n, R): at most <row, output> in the ball: the best over all depths of substitution, or at the input."""
    constant = rows.new_zeros(rows.shape[:2])
    best = torch.full_like(constant, float("-inf"))
    for step in reversed(steps):
        rows, added = step.back(rows)
        constant = constant + added
        if everywhere or step is steps[0]:
            best = torch.maximum(best, constant + step.before.minimum(rows))
    return best


def dot(rows: Tensor, values: Tensor) -> Tensor:
    """(n, R) inner products of rows (n, R, size) with values (n, ...)."""
    return torch.einsum("nrs,ns->nr", rows, values.flatten(1))


def length(values: Tensor) -> Tensor:
    """(n,) Euclidean norms."""
    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms


def _monotone(stage: ReLU | MaxPool | Flatten, known: Known) -> Known:
    low, high = stage.apply(known.low), stage.apply(known.high)
    return Known(stage.apply(known.centre), low, high, stage.lipschitz * known.spread * OUTWARD)


def _transposed(stage: Affine | AvgPool | Flatten, rows: Tensor) -> Tensor:
    moved: Tensor = stage.transpose(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
    return moved
