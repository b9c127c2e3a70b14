"""Radii for a pair of networks: both give one class in the ball, so both agree on all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from feta.certificates.agreement import answers_of
from feta.certificates.attack import Attack, Norm, slopes
from feta.certificates.chain import Chain
from feta.certificates.radius import global_radius
from feta.certificates.relaxation import Relaxation
from feta.certificates.rounding import Rounding
from feta.certificates.search import Test, largest_radius

# Values per stage that a batch of samples may have: rows of many units are held for each sample.
BATCH_VALUES = 2**17
FARTHEST = 1e4  # times the global radius: a scale beyond it may be one of a slope that is nearly zero
FIRST_GUESS = 0.3  # of the distance at which the linearised network changes its class


@dataclass(frozen=True, eq=False)
class Pair:
    """Two networks and their chains."""

    dense: nn.Module
    pruned: nn.Module
    dense_chain: Chain
    pruned_chain: Chain
    norm: Norm = "l2"
    refined: int = 256

    @property
    def models(self) -> tuple[nn.Module, nn.Module]:
        return self.dense, self.pruned

    @property
    def chains(self) -> tuple[Chain, Chain]:
        return self.dense_chain, self.pruned_chain

    @torch.no_grad()
    def answers(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (
            torch.cat([answers_of(model, x) for x in inputs.split(1000)]) for model in self.models
        )
        return first, second

    def radius(self, form: str, inputs: Tensor, tell: Callable[[int], None] = lambda done: None) -> Tensor:
        """(n,) float64: the radius both networks certify; 0 where they disagree or nothing is proven."""
        classes, other = self.answers(inputs)
        agree = classes == other
        found = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)
        if bool(agree.any()):
            x, c = inputs[agree], classes[agree]
            roundings = [Rounding.of(model) for model in self.models]
            proven = self._global(x, c, roundings)
            if form == "global":
                found[agree] = proven
            else:
                pairs = zip(self.chains, roundings, strict=True)
                relaxed = [Relaxation(chain, rounding, self.norm, self.refined) for chain, rounding in pairs]
                # What the one form proves the other need not prove again.
                found[agree] = torch.maximum(proven, self._local(relaxed, x, c, tell))
        tell(len(inputs))
        return found

    def exact_radius(self, inputs: Tensor) -> Tensor:
        """(n,): the global form in exact arithmetic, which says what the allowance for rounding costs."""
        classes, other = self.answers(inputs)
        return torch.where(classes == other, self._global(inputs, classes, (None, None)), 0.0)

    def _global(self, inputs: Tensor, classes: Tensor, roundings: Sequence[Rounding | None]) -> Tensor:
        pairs = zip(self.chains, roundings, strict=True)
        return torch.minimum(*(global_radius(chain, inputs, classes, r, self.norm) for chain, r in pairs))

    def _local(
        self, relaxed: list[Relaxation], inputs: Tensor, classes: Tensor, tell: Callable[[int], None]
    ) -> Tensor:
        widest = max(math.prod(stage.in_shape) for chain in self.chains for stage in chain.stages)
        size = max(1, BATCH_VALUES // widest)
        share, radii = FIRST_GUESS, []
        for start in range(0, len(inputs), size):
            x, c = inputs[start : start + size], classes[start : start + size]

            def test(rows: Tensor, radius: Tensor, x: Tensor = x, c: Tensor = c) -> Tensor:
                # The pruned network first: where it fails, the dense one need not be asked.
                ok = relaxed[1].certified(x[rows], c[rows], radius)
                left = ok.nonzero().squeeze(1)
                if len(left):
                    ok[left] = relaxed[0].certified(x[rows[left]], c[rows[left]], radius[left])
                return ok

            scale = torch.minimum(*(linear_distance(model, x, c, self.norm) for model in self.models))
            radii.append(largest_radius(test, share * scale))
            ratio = radii[-1][scale > 0] / scale[scale > 0]
            if bool((ratio > 0).any()):  # the next batch starts where this one ended
                share = float(ratio[ratio > 0].median())
            # Where the slope is nearly zero the search begins too far out to come back: once more, from inside.
            inside = self._global(x, c, (None, None))
            lost = ((radii[-1] == 0) & (scale > FARTHEST * inside)).nonzero().squeeze(1)
            if len(lost):
                radii[-1][lost] = largest_radius(partial(_within, test, lost), inside[lost])
            tell(start + len(x))
        return torch.cat(radii)

    def attacked(self, attack: Attack, inputs: Tensor, radius: Tensor) -> Tensor:
        """(n,) bool: samples with a radius for which the attack changes a network's class within it."""
        classes = self.answers(inputs)[0]
        found = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        for part in (radius > 0).nonzero().squeeze(1).split(500):
            found[part] = attack.changed(self.models, inputs[part], classes[part], radius[part], self.norm)
        return found


def _within(test: Test, chosen: Tensor, rows: Tensor, radius: Tensor) -> Tensor:
    """A test of some of the samples alone."""
    return test(chosen[rows], radius)


def linear_distance(model: nn.Module, inputs: Tensor, classes: Tensor, norm: Norm) -> Tensor:
    """(n,) margin / ||its gradient||: where the class would change if the network were linear. No bound."""
    margin, gradient = slopes(model, inputs, classes)
    order = 2 if norm == "l2" else 1  # the norm dual to the ball's
    slope = torch.linalg.vector_norm(gradient.flatten(1).double(), ord=order, dim=1)
    distance: Tensor = margin.double().clamp_min(0) / slope.clamp_min(1e-300)
    return distance
