"""plan: what to do with a network in a given time, found by trying every way of it on a small part of the data.

All methods are tried on a few rows, then those that may be the best on four times as many, and so on: until one
choice is clear, until all rows are in use, or until planning has had its share of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from feta.errors import ConfigError, ModelError
from feta.lab.data import DataSet
from feta.lab.durations import duration
from feta.lab.extrapolation import line
from feta.lab.planning import Advice, Candidate, Measured, Stage, Task, advise, forecast, promising
from feta.lab.reproduce.subject import warm_up
from feta.lab.store import Network
from feta.lab.trials import FIXED, Trials, wake
from feta.pruners import make
from feta.sparsity import check_share
from feta.tuning.stepping import clock

SHARE, CAP = 0.15, 0.2  # of the budget: no trial is begun that would end beyond; what goes on is broken off
FIRST_ROWS, GROWTH = 2000, 4
ENOUGH = 0.95  # chance at which nothing more is tried
LOOK = 0.02  # of planning's time, for one look at validation data
RESERVE = 0.4  # of planning's time, kept from first trials

Worth = Collection[tuple[str, Stage]]


@dataclass(frozen=True)
class Plan:
    """What planning found, and what it cost."""

    advice: Advice
    task: Task
    budget: float
    spent: float  # seconds
    skipped: dict[str, str]  # method, or method and stage -> why it is not weighed


def plan(
    network: Network,
    data: DataSet,
    budget: float,
    *,
    sparsity: float = 0.9,
    methods: Sequence[str] = tuple(FIXED),
    seed: int = 0,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda text: None,
) -> Plan:
    """What to do with a network in `budget` seconds, planning included. Thresholding is always among it."""
    if not 0 < budget < math.inf:
        raise ConfigError(f"budget must be > 0 seconds, got {budget}")
    check_share(sparsity)
    for method in methods:
        make(method)
    wake(device)  # before the clock starts: as loading does, it takes its second whatever is done
    watch = Watch(budget, device)
    trials = Trials(network, data, sparsity, LOOK * SHARE * budget, seed, device)
    ladder = _Ladder(trials, watch, tell)
    ladder.climb([name for name in FIXED if name in methods or name == "threshold"])
    skipped = {**ladder.skipped, **trials.failed}
    return Plan(advise(ladder.candidates()), trials.task, budget, watch.elapsed(), skipped)


class Late(Exception):
    """A trial has taken too long."""


class Watch:
    """The time of planning."""

    def __init__(self, budget: float, device: str) -> None:
        self.budget, self.device = budget, torch.device(device)
        self.started = clock(self.device)
        self.brake = math.inf

    def elapsed(self) -> float:
        return clock(self.device) - self.started

    def allowance(self) -> float:
        """Seconds that planning may still take."""
        return SHARE * self.budget - self.elapsed()

    def rest(self) -> float:
        """Seconds until what goes on is broken off; positive, for it becomes a setting."""
        return max(CAP * self.budget - self.elapsed(), 1e-3)

    def check(self, event: Any) -> None:
        """A callback of `feta.prune`."""
        if self.elapsed() > self.brake:
            raise Late


@dataclass(frozen=True)
class _Ladder:
    """Trials of more and more rows, of fewer and fewer candidates."""

    trials: Trials
    watch: Watch
    tell: Callable[[str], None]
    measured: dict[str, Measured] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def climb(self, methods: Sequence[str]) -> None:
        rows, most = FIRST_ROWS, self.trials.task.rows
        tried = [self.step(method, min(rows, most), None) for method in methods]
        while any(tried) and rows < most and self.watch.allowance() > 0:
            advice = advise(self.candidates())
            if advice.chance >= ENOUGH:
                return
            rows *= GROWTH
            worth = promising(advice.candidates)
            # The most accurate first, for time may run out.
            ranked = dict.fromkeys(c.method for c in advice.candidates if (c.method, c.stage) in worth)
            tried = [self.step(method, min(rows, most), worth) for method in ranked]

    def candidates(self) -> list[Candidate]:
        left, task = self.watch.budget - self.watch.elapsed(), self.trials.task
        return [found for measured in self.measured.values() for found in forecast(measured, task, left)]

    def step(self, method: str, rows: int, worth: Worth | None) -> bool:
        """Try a method on so many rows; False where that could not be."""
        known = self.measured.get(method)
        allowance = self.watch.allowance()
        always = method == "threshold" and known is None
        stages = [s for s in ("refine", "retrain") if worth is None or (method, s) in worth]
        expected = self._expected(method, known, rows, stages)
        # Nobody knows what a first trial takes; it must leave time to try the best on more rows.
        may = allowance if known else allowance - RESERVE * SHARE * self.watch.budget
        if expected > may and not always:
            need = f"a trial takes about {duration(expected)}, planning has {duration(max(may, 0.0))} for it"
            self._skip(method, need if may > 0 else "planning has no time left for it")
            return False
        self.watch.brake = math.inf if always else min(self.watch.elapsed() + may, CAP * self.watch.budget)
        self.tell(f"{method}, {rows} rows")
        try:
            if not always:
                warm_up(method, str(self.trials.device))
            self.measured[method] = self.trials.add(
                known or Measured(method, (), ()),
                rows,
                stages if allowance > 0 else (),
                self.watch.rest,
                self.watch.check,
            )
        except Late:
            self._skip(
                method, f"a trial on {rows} rows takes more than the {duration(may)} planning has for it"
            )
            return False
        except (ConfigError, ModelError) as error:
            if always:  # what thresholding cannot do, nothing can
                raise
            self._skip(method, str(error))
            return False
        return True

    def _skip(self, method: str, reason: str) -> None:
        if method not in self.measured:
            self.skipped[method] = reason

    def _expected(self, method: str, known: Measured | None, rows: int, stages: Sequence[str]) -> float:
        if known is None:
            return self.trials.fixed_seconds(method)
        rates = {"refine": known.refine_rate, "retrain": known.retrain_rate}
        looks = (1 + len(stages)) * self.trials.task.look_seconds
        return line(known.prune_seconds, rows).value + rows * sum(rates[stage] for stage in stages) + looks
