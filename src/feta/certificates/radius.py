"""The radius within which two networks give one and the same class to every input.

    global   f_c(x') - f_j(x') >= m_j(x) - ||w_c - w_j||_2  prod_i ||W_i||_2  ||x' - x||_2
             radius = min_j  (m_j - rounding) / (||w_c - w_j||_2 prod_i ||W_i||_2)
    local    the largest radius found for which the `Relaxation` certifies the sample's class

with m_j the margin of class c over class j at the sample, w_j the rows of the last layer, and proven upper values of
the norms of the layers before it, pooling included. The global constants hold everywhere, so that radius is small.
The radius of a pair of networks is the smaller of theirs: both give one class in that ball.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from feta.certificates.agreement import answers_of
from feta.certificates.attack import Attack, Norm, slopes
from feta.certificates.chain import Chain, check_scores
from feta.certificates.relaxation import Relaxation
from feta.certificates.rounding import Rounding, room
from feta.certificates.stages import OUTWARD, Affine, AvgPool, Summing, length

BATCH_VALUES = 2**17  # per stage of a batch of samples: rows of many units are held for each sample
FARTHEST = 1e4  # times the global radius: a scale beyond it may be one of a slope that is nearly zero
FIRST_GUESS = 0.3  # of the distance at which the linearised network changes its class


@dataclass(frozen=True, eq=False)
class Pair:
    """The dense and the pruned network, their chains and roundings, and the samples to certify."""

    models: tuple[nn.Module, nn.Module]
    chains: tuple[Chain, Chain]
    roundings: tuple[Rounding, Rounding]
    inputs: Tensor
    norm: Norm = "l2"
    refined: int = 256

    @cached_property
    def answers(self) -> tuple[Tensor, Tensor]:
        """The class of every sample, by each network."""
        parts = ([answers_of(model, x) for x in self.inputs.split(1000)] for model in self.models)
        first, second = map(torch.cat, parts)
        return first, second

    def global_radii(self, *, exact: bool = False) -> Tensor:
        """(n,) the radius of both networks, 0 where they differ or none is proven; `exact`: with nothing rounded."""
        classes, others = self.answers
        parts = zip(self.chains, (None, None) if exact else self.roundings, strict=True)
        radii = (global_radius(chain, self.inputs, classes, rounding, self.norm) for chain, rounding in parts)
        return torch.where(classes == others, torch.minimum(*radii), 0.0)

    def local_radii(self, tell: Callable[[int], None] = lambda done: None) -> Tensor:
        """(n,) float64: the local radius of both networks, and never less than the global one."""
        classes, others = self.answers
        agree = (classes == others).nonzero().squeeze(1)
        found, inside = self.global_radii(), self.global_radii(exact=True)
        parts = zip(self.chains, self.roundings, strict=True)
        relaxed = [Relaxation(chain, rounding, self.norm, self.refined) for chain, rounding in parts]
        widest = max(math.prod(stage.in_shape) for chain in self.chains for stage in chain.stages)
        share, done = FIRST_GUESS, 0
        for part in agree.split(max(1, BATCH_VALUES // widest)):
            x, c = self.inputs[part], classes[part]

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
        found, classes = radius < 0, self.answers[0]
        for part in (radius > 0).nonzero().squeeze(1).split(500):
            found[part] = attack.changed(self.models, self.inputs[part], classes[part], radius[part], self.norm)
        return found


def linear_distance(model: nn.Module, inputs: Tensor, classes: Tensor, norm: Norm) -> Tensor:
    """(n,) margin / ||its gradient||: where the class would change if the network were linear. No bound."""
    margin, gradient = (values.double() for values in slopes(model, inputs, classes))
    slope: Tensor = torch.linalg.vector_norm(gradient.flatten(1), 2 if norm == "l2" else 1, dim=1)
    return margin.clamp_min(0) / slope.clamp_min(1e-300)


def largest_radius(
    test: Callable[[Tensor, Tensor], Tensor], guess: Tensor, probes: int = 9, tolerance: float = 0.04
) -> Tensor:
    """(n,) a radius that `test` itself accepted, so it need not be monotone; 0 where it accepted none.

    test: given numbers of samples and a radius for each, says which of them it accepts.
    guess: (n,) where to begin; samples whose guess is not > 0 are left out. The search doubles or quarters it until
        a pass and a failure enclose the end, and then halves the bracket on a log scale.
    probes: how often to call `test` at most.
    tolerance: the share by which the ends of a bracket may differ.
    """
    passed, failed, trial = torch.zeros_like(guess), torch.full_like(guess, float("inf")), guess.clone()
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


@torch.no_grad()
def global_radius(
    chain: Chain, inputs: Tensor, classes: Tensor, rounding: Rounding | None = None, norm: str = "l2"
) -> Tensor:
    """(n,) float64: within it the network gives `classes` to every input; 0 where nothing is certified.

    Without `rounding` it is that of exact arithmetic, and certifies nothing of a network that is run.
    """
    check_scores(chain)
    values = list(chain.values(inputs))
    scores, last = values[-1], chain.stages[-1]
    if isinstance(last, Affine):
        rows, body = last.weight, chain.stages[:-1]
    else:  # the scores themselves are compared: w_j is the unit vector e_j
        rows, body = torch.eye(scores.shape[1]).to(scores), chain.stages
    gain = math.prod(stage.lipschitz for stage in body) * OUTWARD
    margins = scores.gather(1, classes[:, None]) - scores  # (n, classes), 0 at c
    slopes = gain * torch.linalg.vector_norm(rows[:, None] - rows[None], dim=2)[classes]  # the same
    own = nn.functional.one_hot(classes, scores.shape[1]).bool()

    def smallest(slack: Tensor) -> Tensor:
        # Two classes with the same row never part: a positive margin holds everywhere.
        left = margins - slack
        share = torch.where(left > 0, left / slopes, 0.0)
        return share.masked_fill(own, float("inf")).amin(1)

    widest = smallest(torch.zeros_like(margins))  # no radius is larger: rounding is bounded on that ball
    # It is infinite only for a constant network, of which nothing is claimed.
    constant = ~widest.isfinite()
    if rounding is not None:
        error = _rounding_error(chain, values, widest.masked_fill(constant, 0), rounding)
        widest = smallest(math.sqrt(2) * error[:, None])
    radius = torch.minimum((widest / OUTWARD).masked_fill(constant, 0), room(values[0]))
    # The box of radius r lies in the ball of radius r sqrt(d).
    return radius if norm == "l2" else radius / math.sqrt(math.prod(chain.in_shape)) / OUTWARD


def _rounding_error(chain: Chain, values: list[Tensor], radius: Tensor, rounding: Rounding) -> Tensor:
    """(n,): how far the computed scores may be from the exact ones, in the Euclidean norm, on the ball."""
    # error' = L error + || box at the sample || + share || |W| || reach
    error, gain = torch.zeros_like(radius), 1.0
    for stage, value in zip(chain.stages, values[:-1], strict=True):
        local = torch.zeros_like(radius)
        if isinstance(stage, Summing):
            reach = gain * radius + error
            local = rounding.box(stage, value.abs()).flatten(1).norm(dim=1)
            local += rounding.share(stage) * _absolute_norm(stage) * reach
            # Values that may leave float32's range: no unit is off the sample's by more than the reach.
            most = value.abs() + reach.view(-1, *[1] * (value.ndim - 1))
            local += length(rounding.underflow(stage, most))
            local[~rounding.box(stage, most).flatten(1).isfinite().all(1)] = float("inf")
        error = stage.lipschitz * error + local
        gain *= stage.lipschitz
    return error


def _absolute_norm(stage: Summing) -> float:
    """At least || |W| ||_2: the root of its largest row sum times its largest column sum."""
    if isinstance(stage, AvgPool):
        return stage.lipschitz
    row_sums = stage.absolute.apply(stage.weight.new_ones(1, *stage.in_shape))
    column_sums = stage.absolute.transpose(stage.weight.new_ones(1, *stage.out_shape))
    return math.sqrt(float(row_sums.max()) * float(column_sums.max())) * OUTWARD
