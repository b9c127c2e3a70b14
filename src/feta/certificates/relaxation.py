"""The local form of a certificate: bounds on a network's margins that hold in a ball around one sample.

Forward, stage by stage, every value is enclosed: by a box, and by its Euclidean distance from the value at the
sample. Backward (CROWN, Zhang et al. 2018), a row of scores is written as a linear function of earlier and
earlier stages, with ReLU and max-pooling replaced by the line that keeps the inequality:

    f_c(x') - f_j(x')  >=  <rows_k, a_k(x')> + constant_k      for every k and every x' in the ball

ReLU and max-pooling are both y = max(x_i, rest) with low <= x_i <= high and rest <= M (ReLU: M = 0). max is convex
in x_i, so it lies under its chord; it lies over x_i, and for ReLU over 0 too:

    lower x_i <= y <= upper x_i + offset,    upper = (high - M) / (high - low),  offset = M - upper low

Where x_i is certain to win (low >= M) both lines are x_i itself; where it cannot (high <= M) the upper is M.

At each k the right side is minimised over what is known of a_k, at the input over the ball itself; the largest
of these is the bound. The boxes of hidden units are made tighter by the same substitution, unit by unit.
Errors of arithmetic enter as boxes (`rounding`), so the bound holds for the network as it is run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from feta.certificates.attack import Norm
from feta.certificates.chain import Chain, check_scores
from feta.certificates.rounding import Rounding, room
from feta.certificates.stages import OUTWARD, Affine, Flatten, MaxPool, ReLU, Stage, Summing, length

# Turns rows (n, R, ...) on a stage's outputs into rows on its inputs and a constant (n, R), such that
# <rows, outputs>  >=  <rows', inputs> + constant    for all inputs that are possible.
Back = Callable[[Tensor], tuple[Tensor, Tensor]]


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

    def with_box(self, low: Tensor, high: Tensor) -> "Known":
        """The smaller of both boxes, and no more spread than its corners have."""
        low, high = torch.maximum(low, self.low), torch.minimum(high, self.high)
        corner = length(torch.maximum(high - self.centre, self.centre - low))
        return Known(self.centre, low, high, torch.minimum(self.spread, corner * OUTWARD))


def envelope(stage: Stage, low: Tensor, high: Tensor) -> Back:
    """Rows through a ReLU or MaxPool, y = max(x_i, rest), by its lines on the box low ... high of the inputs."""
    x_low, x_high, pick = low, high, None
    if isinstance(stage, MaxPool):
        # A pixel of which nothing is known, low = -inf, still goes before padding, which is no input.
        lows, highs = stage.windows(low.clamp_min(torch.finfo(low.dtype).min)), stage.windows(high)
        winner = lows.argmax(2, keepdim=True)  # x_i: the input of the window with the largest lower bound
        rest = highs.scatter(2, winner, float("-inf")).amax(2).reshape(len(low), *stage.out_shape)
        x_low, x_high = (ends.gather(2, winner).reshape_as(rest) for ends in (lows, highs))
        pick = stage.pixels.to(low.device).expand_as(lows).gather(2, winner).squeeze(2)  # (n, channels, positions)
        lower = torch.ones_like(rest)
    else:
        rest = torch.zeros_like(low)
        lower = ((low >= 0) | (high > -low)).to(low)  # of the lines below, the one that leaves the smaller triangle
    wins, loses = rest <= x_low, rest >= x_high
    width = torch.where(wins | loses, 1.0, x_high - x_low)
    upper = torch.where(wins, 1.0, torch.where(loses, 0.0, (x_high - rest) / width))
    # rest is -inf in windows of one pixel: those are certain wins.
    offset = torch.where(wins, 0.0, rest - upper * x_low)

    def back(rows: Tensor) -> tuple[Tensor, Tensor]:
        negative = rows.clamp_max(0)
        constant = dot(negative.flatten(2), offset)
        # positive * lower + negative * upper, in few passes over memory: this is where the time goes.
        moved = (rows * lower[:, None]).addcmul_(negative, (upper - lower)[:, None])
        if pick is None:
            return moved, constant
        n, R = moved.shape[:2]
        flat = moved.new_zeros(n, R, stage.in_shape[0], math.prod(stage.in_shape[1:]))
        # Overlapping windows may pick the same pixel: their rows add up.
        flat.scatter_add_(3, pick[:, None].expand(n, R, -1, -1), moved.flatten(3))
        return flat.reshape(n, R, *stage.in_shape), constant

    return back


Step = tuple[Known, Back]  # of one relaxed stage: what holds of its inputs, and the way back to them


def relax(stage: Stage, known: Known, rounding: Rounding) -> tuple[Known, Back, Tensor | None]:
    """What holds of a stage's outputs, the way back, and how far each output may be off by rounding."""
    low, high, centre = known.low, known.high, stage.apply(known.centre)
    if not isinstance(stage, Summing):
        # These stages are monotone in every input, so the ends of the box go to its ends.
        after = Known(centre, stage.apply(low), stage.apply(high), stage.lipschitz * known.spread * OUTWARD)
        back = partial(_back, stage, None) if isinstance(stage, Flatten) else envelope(stage, low, high)
        return after, back, None
    error = rounding.box(stage, torch.maximum(high.abs(), low.abs()))
    spread = (stage.lipschitz * known.spread + length(error)) * OUTWARD
    middle, half = stage.apply((high + low) / 2), stage.absolute.apply((high - low) / 2) + error
    reach = error + stage.row_norms * known.spread.view(-1, *[1] * (centre.ndim - 1)) * OUTWARD
    after = Known(centre, centre - reach, centre + reach, spread).with_box(middle - half, middle + half)
    return after, partial(_back, stage, error), error


def _back(stage: Summing | Flatten, error: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
    constant = rows.new_zeros(rows.shape[:2]) if error is None else -dot(rows.abs().flatten(2), error)
    if isinstance(stage, Affine):
        constant += (rows.flatten(3).sum(3) if rows.ndim > 3 else rows) @ stage.bias
    return stage.transpose(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]), constant


def lower(steps: Sequence[Step], rows: Tensor, *, everywhere: bool = True) -> Tensor:
    """(n, R): at most <row, output> in the ball: the best over all depths of substitution, or at the input."""
    constant = rows.new_zeros(rows.shape[:2])
    best = torch.full_like(constant, float("-inf"))
    for before, back in reversed(steps):
        rows, added = back(rows)
        constant = constant + added
        if everywhere or before is steps[0][0]:
            best = torch.maximum(best, constant + before.minimum(rows))
    return best


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Margins of one network on balls. `refined`: hidden units per layer and sample whose boxes are tightened."""

    chain: Chain
    rounding: Rounding = field(default_factory=Rounding)
    norm: Norm = "l2"
    refined: int = 256
    memory: int = 2**21  # numbers in one tensor of the backward pass

    @torch.no_grad()
    def margins(self, inputs: Tensor, classes: Tensor, radius: Tensor) -> Tensor:
        """(n, classes): at most f_c(x') - f_j(x') for every x' within `radius` of the sample; inf at j = c."""
        check_scores(self.chain)
        x, reach = self.chain.place(inputs), radius.double() * OUTWARD
        outside = ~(reach < room(x))  # a ball with inputs that are no numbers
        reach = reach.masked_fill(outside, 0)
        corner = math.sqrt(x[0].numel()) if self.norm == "linf" else 1.0
        wide = reach.view(-1, *[1] * (x.ndim - 1))
        known = Known(x, x - wide, x + wide, corner * reach)
        steps, stages = list[Step](), _pools_first(self.chain.stages)
        for number, stage in enumerate(stages):
            after, back, error = relax(stage, known, self.rounding)
            bends_later = any(isinstance(later, ReLU | MaxPool) for later in stages[number + 1 :])
            if isinstance(stage, Affine) and error is not None and steps and bends_later:
                after = self._refine(steps, stage, error, after)
            steps.append((known, back))
            known = after
        own = nn.functional.one_hot(classes, self.chain.out_shape[0]).double()  # (n, classes)
        rows = own[:, None, :] - torch.eye(own.shape[1], dtype=own.dtype, device=own.device)
        least = lower(steps, rows).masked_fill(outside[:, None], float("-inf"))
        return least.masked_fill(own.bool(), float("inf"))

    def certified(self, inputs: Tensor, classes: Tensor, radius: Tensor) -> Tensor:
        """(n,) bool: the network gives `classes` to every input within `radius`."""
        return (self.margins(inputs, classes, radius) > 0).all(1)

    def _refine(self, earlier: Sequence[Step], stage: Affine, error: Tensor, known: Known) -> Known:
        """Bound undecided units of a layer one by one, by substitution back to the input."""
        low, high = known.low.flatten(1), known.high.flatten(1)
        # The height of the triangle a ReLU on this box would leave open; 0 where it is decided.
        gap = high.clamp_min(0) * (-low).clamp_min(0) / (high - low).clamp_min(1e-300)
        count = min(int((gap > 0).sum(1).max()), self.refined)
        if count == 0:
            return known
        gaps, units = gap.topk(count, dim=1)
        # A sample with fewer open units than its neighbours in the batch leaves the rest as they are.
        slack = error.flatten(1).gather(1, units).masked_fill(~(gaps > 0), float("inf"))
        size = max(low.shape[1], *(before.centre[0].numel() for before, _ in earlier))
        chunk = max(1, self.memory // (2 * len(low) * size))
        for part, off in zip(units.split(chunk, dim=1), slack.split(chunk, dim=1), strict=True):
            rows, bias = stage.rows(part)
            # Both ends in one pass: the lower bound of minus a unit is minus its upper bound.
            least, most = lower(earlier, torch.cat((rows, -rows), 1), everywhere=False).chunk(2, dim=1)
            low = low.scatter(1, part, torch.maximum(low.gather(1, part), bias + least - off))
            high = high.scatter(1, part, torch.minimum(high.gather(1, part), bias - most + off))
        return known.with_box(low.reshape_as(known.low), high.reshape_as(known.high))


def _pools_first(stages: Sequence[Stage]) -> list[Stage]:
    """Max-pooling before ReLU where it stood after: the same function, and a quarter of the units to bound."""
    ordered = list(stages)
    for place in range(len(ordered) - 1):
        relu, pool = ordered[place : place + 2]
        if isinstance(relu, ReLU) and isinstance(pool, MaxPool):
            ordered[place : place + 2] = pool, ReLU(relu.name, pool.out_shape, pool.out_shape)
    return ordered


def dot(rows: Tensor, values: Tensor) -> Tensor:
    """(n, R) inner products of rows (n, R, size) with values (n, ...)."""
    return torch.einsum("nrs,ns->nr", rows, values.flatten(1))
