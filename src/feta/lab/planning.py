"""The planner's choice: what was measured of a small part of the work -> what to do with the whole of it.

    prune     by a method, on all rows
    refine    and fit the survivors to the dense network's outputs
    retrain   or train them on with labels, until the accuracy is back or the budget is spent

Pure functions of measurements; `probing` takes those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from feta.lab.extrapolation import Estimate, Points, Shrink, line, settle
from feta.tuning.refine_run import Refinement
from feta.tuning.retrain_run import Retraining

Stage = Literal["prune", "refine", "retrain"]
STAGES: tuple[Stage, ...] = ("prune", "refine", "retrain")

NEAR = 0.2  # points: as good as the best
TIE = 0.1  # points that are not worth waiting for
# Of the law by which a gap shrinks: measured on the paper's dense networks.
REFINE_POWER, RETRAIN_POWER = 0.4, 0.33
SATURATED = 12.0  # epochs after which retraining usually finds nothing better
# Two networks of one accuracy err on other images; on the same images their accuracies differ by about half
# of what they would on images of their own.
PAIRED = 0.5
CALIBRATION = 0.7  # times the spread; see benchmarks/planner.py
DRAWS = 4000
WORDS = ((0.8, "sure"), (0.5, "likely"), (0.0, "a guess"))


@dataclass(frozen=True)
class Task:
    """The whole work: its size, what it has to come back to, and the settings of its stages."""

    rows: int  # of the training set
    dense: float  # validation accuracy in percent
    images: int  # that accuracy was measured on
    look_seconds: float  # one look at all validation data
    passes: int = Refinement.passes
    refine_batch: int = Refinement.batch_size
    epochs: int = Retraining.max_epochs
    patience: float = 5.0  # epochs
    retrain_batch: int = Retraining.batch_size
    check_every: float = Retraining.check_every
    tolerance: float = Retraining.tolerance

    def noise(self, accuracy: float) -> float:
        share = min(max(accuracy / 100, 0.01), 0.99)
        return PAIRED * 100 * math.sqrt(share * (1 - share) / self.images)


@dataclass(frozen=True)
class Measured:
    """What was measured of one method; points are (rows or steps, value), the larger last."""

    method: str
    prune_seconds: Points
    prune: Points  # accuracy over rows
    refine: Points = ()  # accuracy over steps
    refine_rate: float = 0.0  # seconds for a row, once
    retrain: Points = ()
    retrain_rate: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """One thing to do, and what is expected of it."""

    method: str
    stage: Stage
    accuracy: Estimate  # validation, percent
    seconds: Estimate
    fits: bool
    limit: float | None = None  # seconds that retraining may take

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Advice:
    """The candidate to take, how sure that is, and all that were weighed, the most accurate first."""

    choice: Candidate
    chance: float  # that nothing measured which fits is better by more than NEAR
    candidates: tuple[Candidate, ...] = field(repr=False)

    @property
    def word(self) -> str:
        return next(word for least, word in WORDS if self.chance >= least)


def forecast(measured: Measured, task: Task, left: float) -> list[Candidate]:
    """What to expect of a method in each stage that was measured, with `left` seconds for it."""
    prune = line(measured.prune_seconds, task.rows)
    fits = prune.value + prune.spread <= left
    found = [_candidate(measured, task, "prune", settle(measured.prune, task.rows, task.dense), prune, fits)]
    if measured.refine:
        steps = task.passes * task.rows / task.refine_batch
        seconds = _rate(measured.refine_rate * task.passes * task.rows) + prune
        accuracy = _law(measured, task, REFINE_POWER).at(measured.refine, steps)
        in_time = seconds.value + seconds.spread <= left
        found.append(_candidate(measured, task, "refine", accuracy, seconds, in_time))
    if measured.retrain:
        found.append(_retrained(measured, task, prune, left - prune.value - prune.spread))
    return found


def _retrained(measured: Measured, task: Task, prune: Estimate, limit: float) -> Candidate:
    """Until recovered, until saturated, or until `limit` seconds are over: whichever comes first."""
    in_epoch = task.rows / task.retrain_batch
    seconds = measured.retrain_rate * task.rows + task.look_seconds / task.check_every
    most = min(max(limit, 0.0) / seconds, task.epochs, SATURATED)
    law = _law(measured, task, RETRAIN_POWER)
    needed = law.steps_to(measured.retrain, task.dense - task.tolerance) / in_epoch
    epochs = min(needed, most)
    accuracy = law.at(measured.retrain, epochs * in_epoch)
    if needed == 0:  # no step is taken
        accuracy = settle(measured.prune, task.rows, task.dense)
    taken = epochs * seconds
    spent = Estimate(taken, max(min(taken / 2, limit - taken), 0.0))
    fits = limit > 2 * task.look_seconds  # before the first step, and after the last
    candidate = _candidate(measured, task, "retrain", accuracy, prune + spent, fits)
    return replace(candidate, limit=max(limit, 0.0))


def _law(measured: Measured, task: Task, power: float) -> Shrink:
    return Shrink(measured.prune[-1][1], task.dense, power)


def _candidate(
    measured: Measured, task: Task, stage: Stage, accuracy: Estimate, seconds: Estimate, fits: bool
) -> Candidate:
    spread = CALIBRATION * math.hypot(accuracy.spread, task.noise(accuracy.value))
    expected = Estimate(accuracy.value, spread, CALIBRATION * accuracy.shared)
    return Candidate(measured.method, stage, expected, seconds, fits)


def _rate(seconds: float) -> Estimate:
    return Estimate(seconds, 0.15 * seconds)


def advise(candidates: Sequence[Candidate]) -> Advice:
    """The most accurate that fits; of those that are as good but for TIE points, the quickest.

    If nothing fits, the quickest of all: the choice then says so.
    """
    ranked = tuple(sorted(candidates, key=lambda c: (-c.accuracy.value, c.seconds.value)))
    fitting = [candidate for candidate in ranked if candidate.fits]
    if not fitting:
        return Advice(min(ranked, key=lambda c: c.seconds.value), 0.0, ranked)
    near = [c for c in fitting if c.accuracy.value >= fitting[0].accuracy.value - TIE]
    choice = min(near, key=lambda c: c.seconds.value)
    return Advice(choice, chance(choice, [c for c in fitting if c is not choice]), ranked)


def chance(choice: Candidate, others: Sequence[Candidate]) -> float:
    """P(no other is better by more than NEAR), by drawing: normal, each of its own but for what a stage shares."""
    weighed = [choice, *others]
    value, own, shared = (
        torch.tensor([getattr(c.accuracy, name) for c in weighed], dtype=torch.float64)
        for name in ("value", "own", "shared")
    )
    stages = torch.tensor([STAGES.index(c.stage) for c in weighed])
    generator = torch.Generator().manual_seed(0)
    law = torch.randn(DRAWS, len(STAGES), generator=generator, dtype=torch.float64)[:, stages]
    drawn = torch.randn(DRAWS, len(weighed), generator=generator, dtype=torch.float64)
    reached = value + shared * law + own * drawn
    return float((reached[:, 0] + NEAR >= reached.max(1).values).double().mean())


def promising(candidates: Sequence[Candidate]) -> set[tuple[str, Stage]]:
    """Those worth measuring further: they fit, and may be the best by two spreads."""
    fitting = [candidate for candidate in candidates if candidate.fits]
    floor = max((c.accuracy.value - 2 * c.accuracy.spread for c in fitting), default=-math.inf)
    return {(c.method, c.stage) for c in fitting if c.accuracy.value + 2 * c.accuracy.spread >= floor}
