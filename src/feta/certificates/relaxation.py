"""The local form of a certificate: bounds on a network's margins that hold in a ball around one sample.

Forward, stage by stage, every value is enclosed: by a box, and by its Euclidean distance from the value at the
sample. Backward (CROWN, Zhang et al. 2018), a row of scores is written as a linear function of earlier and
earlier stages, ReLU and max-pooling replaced by the line that keeps the inequality:

    f_c(x') - f_j(x')  >=  <rows_k, a_k(x')> + constant_k      for every k and every x' in the ball

At each k the right side is minimised over what is known of a_k, at the input over the ball itself; the largest
of these is the bound. The boxes of hidden units are made tighter by the same substitution, unit by unit.
Errors of arithmetic enter as boxes (`rounding`), so the bound holds for the network as it is run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from feta.certificates.attack import Norm
from feta.certificates.chain import Chain
from feta.certificates.envelopes import pool_envelope, relu_envelope
from feta.certificates.radius import check_scores
from feta.certificates.rounding import OUTWARD, Rounding
from feta.certificates.rows import unit_rows
from feta.certificates.stages import Affine, AvgPool, Flatten, MaxPool, ReLU, Stage
from feta.certificates.steps import BentStep, Known, LinearStep, ShapeStep, Step, lower


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
        known = self._ball(inputs.to(self.chain.device, torch.float64), radius.double())
        steps: list[Step] = []
        stages = _pools_first(self.chain.stages)
        for number, stage in enumerate(stages):
            steps.append(step := self._step(stage, known))
            known = step.after()
            bends_later = any(isinstance(later, ReLU | MaxPool) for later in stages[number + 1 :])
            if isinstance(step, LinearStep) and isinstance(stage, Affine) and number > 0 and bends_later:
                known = self._refine(steps[:-1], stage, step.error, known)
        own = nn.functional.one_hot(classes, self.chain.out_shape[0]).double()  # (n, classes)
        rows = own[:, None, :] - torch.eye(own.shape[1], dtype=own.dtype, device=own.device)
        return lower(steps, rows).masked_fill(own.bool(), float("inf"))

    def certified(self, inputs: Tensor, classes: Tensor, radius: Tensor) -> Tensor:
        """(n,) bool: the network gives `classes` to every input within `radius`."""
        return (self.margins(inputs, classes, radius) > 0).all(1)

    def _ball(self, x: Tensor, radius: Tensor) -> Known:
        reach = radius.view(-1, *[1] * (x.ndim - 1)) * OUTWARD
        corner = math.sqrt(x[0].numel()) if self.norm == "linf" else 1.0
        return Known(x, x - reach, x + reach, corner * radius * OUTWARD)

    def _step(self, stage: Stage, known: Known) -> Step:
        match stage:
            case Affine() | AvgPool():
                return LinearStep(stage, known, self.rounding.box(stage, known.largest()))
            case ReLU():
                return BentStep(stage, known, relu_envelope(known.low, known.high))
            case MaxPool():
                return BentStep(stage, known, pool_envelope(stage, known.low, known.high))
            case Flatten():
                return ShapeStep(stage, known)

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
        decided = torch.where(gaps > 0, 0.0, float("inf"))
        size = max(math.prod(step.stage.in_shape) for step in earlier)
        chunk = max(1, self.memory // (2 * len(low) * size))
        for part, unused in zip(units.split(chunk, dim=1), decided.split(chunk, dim=1), strict=True):
            rows, bias = unit_rows(stage, part)
            slack = error.flatten(1).gather(1, part) + unused
            # Both ends in one pass: the lower bound of minus a unit is minus its upper bound.
            found = lower(earlier, torch.cat((rows, -rows), 1), everywhere=False)
            least, most = found.chunk(2, dim=1)
            low = low.scatter(1, part, torch.maximum(low.gather(1, part), bias + least - slack))
            high = high.scatter(1, part, torch.minimum(high.gather(1, part), bias - most + slack))
        return known.with_box(low.reshape_as(known.low), high.reshape_as(known.high))


def _pools_first(stages: Sequence[Stage]) -> list[Stage]:
    """Max-pooling before ReLU where it stood after: the same function, and a quarter of the units to bound."""
    ordered = list(stages)
    for place in range(len(ordered) - 1):
        relu, pool = ordered[place : place + 2]
        if isinstance(relu, ReLU) and isinstance(pool, MaxPool):
            ordered[place] = pool
            ordered[place + 1] = ReLU(relu.name, pool.out_shape, pool.out_shape)
    return ordered
