"""Radii for a pair of networks: both give one class in the ball, so both agree on all of it.

global   the smaller of the two networks' `global_radius`
local    the largest radius found for which both networks' `Relaxation` certifies the sample's class
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from feta.certificates.agreement import answers_of
from feta.certificates.attack import Attack, Norm, slopes
from feta.certificates.chain import Chain
from feta.certificates.radius import global_radius
from feta.certificates.relaxation import Relaxation
from feta.certificates.rounding import Rounding

# Values per stage that a batch of samples may have: rows of many units are held for each sample.
BATCH_VALUES = 2**17
FARTHEST = 1e4  # times the global radius: a scale beyond it may be one of a slope that is nearly zero
FIRST_GUESS = 0.3  # of the distance at which the linearised network changes its class


@dataclass(frozen=True, eq=False)
class Pair:
    """The dense and the pruned network, their chains, and the samples to certify."""

    models: tuple[nn.Module, nn.Module]
    chains: tuple[Chain, Chain]
    inputs: Tensor
    norm: Norm = "l2"
    refined: int = 256

    @cached_property
    def answers(self) -> tuple[Tensor, Tensor]:
        """The class of every sample, by each network."""
        with torch.no_grad():
            first, second = (
                torch.cat([answers_of(model, x) for x in self.inputs.split(1000)]) for model in self.models
            )
        return first, second

    @property
    def classes(self) -> Tensor:
        return self.answers[0]

    def global_radii(self, *, exact: bool = False) -> Tensor:
        """(n,) float64: the global radius of both networks; 0 where they disagree or nothing is proven.

        `exact` leaves the allowance for rounding out: the difference is what that costs.
        """
        radii = (
            global_radius(chain, self.inputs, self.classes, None if exact else Rounding.of(model), self.norm)
            for chain, model in zip(self.chains, self.models, strict=True)
        )
        return torch.where(self.classes == self.answers[1], torch.minimum(*radii), 0.0)

    def local_radii(self, tell: Callable[[int], None] = lambda done: None) -> Tensor:
        """(n,) float64: the local radius of both networks, and never less than the global one."""
        agree = (self.classes == self.answers[1]).nonzero().squeeze(1)
        found, inside = self.global_radii(), self.global_radii(exact=True)
        relaxed = [
            Relaxation(chain, Rounding.of(model), self.norm, self.refined)
            for chain, model in zip(self.chains, self.models, strict=True)
        ]
        widest = max(math.prod(stage.in_shape) for chain in self.chains for stage in chain.stages)
        share, done = FIRST_GUESS, 0
        for part in agree.split(max(1, BATCH_VALUES // widest)):
            x, c = self.inputs[part], self.classes[part]

            def test(rows: Tensor, radius: Tensor, x: Tensor = x, c: Tensor = c) -> Tensor:
                # The pruned network first: where it fails, the dense one need not be asked.
                ok = relaxed[1].certified(x[rows], c[rows], radius)
                left = ok.nonzero().squeeze(1)
                if len(left):
                    ok[left] = relaxed[0].certified(x[rows[left]], c[rows[left]], radius[left])
                return ok

            scale = torch.minimum(*(linear_distance(model, x, c, self.norm) for model in self.models))
            radius = largest_radius(test, share * scale)
            ratio = radius[radius > 0] / scale[radius > 0]
            if len(ratio):  # the next batch starts where this one ended
                share = float(ratio.median())
            # Where the slope is nearly zero the search begins too far out to come back: once more, from inside.
            lost = (radius == 0) & (scale > FARTHEST * inside[part])
            radius = torch.maximum(radius, largest_radius(test, torch.where(lost, inside[part], 0.0)))
            found[part] = torch.maximum(found[part], radius)
            tell(done := done + len(part))
        return found

    def attacked(self, attack: Attack, radius: Tensor) -> Tensor:
        """(n,) bool: samples with a radius for which the attack changes a network's class within it."""
        found = torch.zeros_like(self.classes, dtype=torch.bool)
        for part in (radius > 0).nonzero().squeeze(1).split(500):
            x, classes = self.inputs[part], self.classes[part]
            found[part] = attack.changed(self.models, x, classes, radius[part], self.norm)
        return found


def linear_distance(model: nn.Module, inputs: Tensor, classes: Tensor, norm: Norm) -> Tensor:
    """(n,) margin / ||its gradient||: where the class would change if the network were linear. No bound."""
    margin, gradient = slopes(model, inputs, classes)
    order = 2 if norm == "l2" else 1  # the norm dual to the ball's
    slope = torch.linalg.vector_norm(gradient.flatten(1).double(), ord=order, dim=1)
    distance: Tensor = margin.double().clamp_min(0) / slope.clamp_min(1e-300)
    return distance


def largest_radius(
    test: Callable[[Tensor, Tensor], Tensor], guess: Tensor, probes: int = 9, tolerance: float = 0.04
) -> Tensor:
    """(n,) a radius that was accepted, 0 where none was; samples whose guess is not > 0 are left out.

    test: given numbers of samples and a radius for each, says which of them it accepts.
    guess: (n,) where to begin. The search doubles or quarters it until a pass and a failure enclose the end, and
        then halves the bracket on a log scale until its ends differ by `tolerance`.
    probes: how often to call `test` at most.

    What is returned has been accepted by `test` itself, so the test need not be monotone.
    """
    passed = torch.zeros_like(guess)
    failed = torch.full_like(guess, float("inf"))
    trial = guess.clone()
    for _ in range(probes):
        active = ((trial > 0) & trial.isfinite() & (failed > (1 + tolerance) * passed)).nonzero().squeeze(1)
        if len(active) == 0:
            break
        tried = trial[active]
        accepted = test(active, tried)
        passed[active] = torch.where(accepted, tried, passed[active])
        failed[active] = torch.where(accepted, failed[active], tried)
        low, high = passed[active], failed[active]
        inside = torch.where(low > 0, (low * high).sqrt(), high / 4)
        trial[active] = torch.where(high.isinf(), 2 * low, inside)
    return passed
