"""Linear envelopes of ReLU and max-pooling on a box: a line below and a line above, in one unit each.

Both are y = max(x_i, rest) with low <= x_i <= high and rest <= M (ReLU: M = 0). max is convex in x_i, so it
lies under its chord; it lies over x_i, and for ReLU over 0 too:

    lower x_i <= y <= upper x_i + offset,    upper = (high - M) / (high - low),  offset = M - upper low

Where x_i is certain to win (low >= M) both lines are x_i itself; where it cannot (high <= M) the upper is M.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.certificates.stages import MaxPool


@dataclass(frozen=True, eq=False)
class Envelope:
    """Lines per output: slopes `lower` and `upper`, `offset` of the upper one, and `pick`, which input i is."""

    lower: Tensor
    upper: Tensor
    offset: Tensor
    pick: Tensor | None = None  # (n, channels, positions) into the flat input map; None: the unit itself
    in_shape: tuple[int, ...] = ()

    def back(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, R, ...) on the outputs become rows on the inputs and a constant (n, R), from below."""
        negative = rows.clamp_max(0)
        constant = torch.einsum("nrs,ns->nr", negative.flatten(2), self.offset.flatten(1))
        # positive * lower + negative * upper, in few passes over memory: this is where the time goes.
        moved = (rows * self.lower[:, None]).addcmul_(negative, (self.upper - self.lower)[:, None])
        if self.pick is None:
            return moved, constant
        n, R = moved.shape[:2]
        channels, height, width = self.in_shape
        flat = moved.new_zeros(n, R, channels, height * width)
        # Overlapping windows may pick the same pixel: their rows add up.
        flat.scatter_add_(3, self.pick[:, None].expand(n, R, -1, -1), moved.flatten(3))
        return flat.reshape(n, R, *self.in_shape), constant


def relu_envelope(low: Tensor, high: Tensor) -> Envelope:
    upper, offset = _chord(low, high, torch.zeros_like(low))
    # Of the lines below, the one that leaves the smaller triangle.
    lower = ((low >= 0) | (high > -low)).to(low)
    return Envelope(lower, upper, offset)


def pool_envelope(stage: MaxPool, low: Tensor, high: Tensor) -> Envelope:
    """x_i is the input of the window with the largest lower bound."""
    # A pixel of which nothing is known, low = -inf, still goes before padding, which is no input.
    low = low.clamp_min(torch.finfo(low.dtype).min)
    lows, highs = stage.windows(low), stage.windows(high)  # (n, channels, window, positions)
    winner = lows.argmax(2, keepdim=True)
    rest = highs.scatter(2, winner, float("-inf")).amax(2)
    upper, offset = _chord(lows.gather(2, winner).squeeze(2), highs.gather(2, winner).squeeze(2), rest)
    pick = stage.pixels.to(low.device).expand_as(lows).gather(2, winner).squeeze(2)
    upper, offset = (values.reshape(len(low), *stage.out_shape) for values in (upper, offset))
    return Envelope(torch.ones_like(upper), upper, offset, pick, stage.in_shape)


def _chord(low: Tensor, high: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset of the upper line of max(x, rest) over low <= x <= high."""
    wins, loses = rest <= low, rest >= high
    width = torch.where(wins | loses, torch.ones_like(low), high - low)
    slope = torch.where(wins, 1.0, torch.where(loses, 0.0, (high - rest) / width))
    # rest is -inf in windows of one pixel: those are certain wins.
    offset = torch.where(wins, torch.zeros_like(low), rest - slope * low)
    return slope, offset
