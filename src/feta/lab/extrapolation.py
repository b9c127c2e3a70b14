"""From a small part of the work to the whole: three laws, each with how far to trust it.

    line     seconds grow with the rows                       t(n) = a + b n
    settle   what too few rows cost falls with their number   accuracy(n) = limit - c / n
    Shrink   what is lost falls with the steps taken          ceiling - accuracy(s) = c (1 + s / s0)^-p

Points are (rows or steps, measured), the larger last. A spread is a standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]

REPEAT = 0.1  # two runs of the same work differ by about so much of its time


@dataclass(frozen=True)
class Estimate:
    """A value that was measured or extrapolated, and its standard deviation."""

    value: float
    spread: float
    shared: float = 0.0  # the part of the spread that comes from the law, and that all who go by it share

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.value + other.value, math.hypot(self.spread, other.spread))

    @property
    def own(self) -> float:
        return math.sqrt(max(self.spread**2 - self.shared**2, 0.0))


def line(points: Points, at: float) -> Estimate:
    """Seconds for `at` rows."""
    n, seconds = points[-1]
    grown, doubt = 0.0, 0.0
    if at > n and len(points) == 1:  # between nothing and all of it grows with the rows
        grown = seconds * (at / n - 1) / 2
        doubt = grown / 2
    elif at > n:
        before, quicker = points[-2]
        slope = min(max((seconds - quicker) / (n - before), 0.0), seconds / n)
        grown = slope * (at - n)
        doubt = grown / 4
    return Estimate(seconds + grown, math.hypot(REPEAT * seconds, doubt))


def settle(points: Points, at: float, ceiling: float) -> Estimate:
    """Accuracy with `at` rows; more of them are never taken to do harm."""
    n, accuracy = points[-1]
    if at <= n:
        return Estimate(accuracy, 0.0)
    if len(points) == 1:
        return Estimate(accuracy, max(ceiling - accuracy, 0.0) / 4)
    before, worse = points[-2]
    gain = max(accuracy - worse, 0.0) * (1 / n - 1 / at) / (1 / before - 1 / n)
    return Estimate(max(min(accuracy + gain, ceiling), accuracy), gain / 2)


@dataclass(frozen=True)
class Shrink:
    """ceiling - accuracy(s) = (ceiling - start) (1 + s / s0)^-power, with s0 such that a point lies on it.

    A start that is good already is one from which some steps have been taken: that is s0.
    """

    start: float  # accuracy before the first step
    ceiling: float
    power: float
    doubt: float = 0.1  # of the power

    def at(self, points: Points, steps: float) -> Estimate:
        """Accuracy after so many steps, by the last point; the one before says how well that would have done."""
        done, accuracy = points[-1]
        if steps <= done or accuracy >= self.ceiling:
            return Estimate(accuracy, 0.0)
        before, left = self._left(points[-2:][0], steps), self._left(points[-1], steps)
        shared = left * math.log(steps / done) * self.doubt  # d left / d power
        # Very few steps may gain nothing, and foretell nothing.
        own = min(abs(left - before) / 2, left)
        return Estimate(self.ceiling - left, math.hypot(shared, own), shared)

    def steps_to(self, points: Points, goal: float) -> float:
        """Steps after which the accuracy is `goal`; infinite if it never is."""
        gap, narrow = self.ceiling - self.start, self.ceiling - goal
        if self.start >= goal:
            return 0.0
        done, accuracy = points[-1]
        if accuracy >= self.ceiling:  # no later than that
            return done
        s0 = self._shift(points[-1])
        if s0 == math.inf or narrow <= 0:
            return math.inf
        return s0 * (math.pow(gap / narrow, 1 / self.power) - 1)

    def _left(self, point: tuple[float, float], steps: float) -> float:
        s0 = self._shift(point)
        if s0 == math.inf:
            return self.ceiling - max(point[1], self.start)
        if s0 == 0:
            return 0.0
        return (self.ceiling - self.start) * math.pow(1 + steps / s0, -self.power)

    def _shift(self, point: tuple[float, float]) -> float:
        """s0: infinite where a point is no better than the start, zero where nothing is left to gain."""
        steps, accuracy = point
        gap, left = self.ceiling - self.start, self.ceiling - accuracy
        if left <= 0:
            return 0.0
        grown = math.pow(max(gap / left, 1.0), 1 / self.power) - 1
        return steps / grown if grown > 0 else math.inf
