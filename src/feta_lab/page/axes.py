"""Axes: the range of the data, round ticks whose labels do not touch, and positions in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from feta_lab.page.numbers import fixed, power_of_ten, tick_labels

# The extent of a label along its axis, in the units of the axis' length.
LabelSize = Callable[[str], float]


@dataclass(frozen=True)
class Axis:
    """A range with labelled ticks; `minor` are the unlabelled ones between decades."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...] = ()
    minor: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Where the value lies: 0 at the low end, 1 at the high end."""
        if self.log:
            low = math.log10(self.low)
            return (math.log10(value) - low) / (math.log10(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def fits(self, length: float, label_size: LabelSize) -> bool:
        """Whether no two neighbouring labels touch."""
        spots = [(self.place(value) * length, label_size(label)) for value, label in self.ticks]
        return all(b - a >= (size_a + size_b) / 2 for (a, size_a), (b, size_b) in pairwise(spots))


def linear_axis(
    values: Sequence[float], length: float, label_size: LabelSize, percent: bool = False, most: int = 7
) -> Axis:
    """The axis with the most round ticks that fit."""
    low, high = _linear_range(values, percent)
    axis = Axis(low, high, log=False)
    for count in range(most, 0, -1):
        step = _round_step(low, high, count)
        ticks = _multiples(low, high, step)
        axis = Axis(low, high, False, tuple(zip(ticks, tick_labels(ticks, step, percent), strict=True)))
        if axis.fits(length, label_size):
            break
    return axis


def log_axis(values: Sequence[float], length: float, label_size: LabelSize) -> Axis:
    """The axis with the finest of 1-2-5, 1-3, decades, every other decade ... that fits."""
    low, high = _log_range(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    minor = _decade_ticks(low, high, decades, range(2, 10)) if len(decades) <= 6 else ()
    axis = Axis(low, high, log=True)
    for ticks, labels in _log_choices(low, high, decades):
        axis = Axis(low, high, True, tuple(zip(ticks, labels, strict=True)), minor)
        if len(ticks) <= 8 and axis.fits(length, label_size):
            break
    return axis


def _linear_range(values: Sequence[float], percent: bool) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    largest = max(abs(low), abs(high))
    # Values equal up to rounding have no spread to show, only a place.
    same = high - low <= 1e-9 * largest
    margin = (0.05 * largest or 0.5) if same else 0.05 * (high - low)
    # Room below zero, or above 100%, would suggest values that cannot be.
    bottom = max(low - margin, 0.0) if low >= 0 else low - margin
    top = min(high + margin, 1.0) if percent and low >= 0 and high <= 1 else high + margin
    return bottom, top


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 1.0, 10.0
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = 0.3 if high - low < 1e-9 else 0.04 * (high - low)
    return 10 ** (low - margin), 10 ** (high + margin)


def _round_step(low: float, high: float, count: int) -> float:
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10, 20) if m * power >= rough * (1 - 1e-9))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _decade_ticks(low: float, high: float, decades: Sequence[int], digits: Sequence[int]) -> tuple[float, ...]:
    ticks = (digit * 10.0**decade for decade in decades for digit in digits)
    return tuple(tick for tick in ticks if low <= tick <= high)


def _log_choices(low: float, high: float, decades: range) -> Iterator[tuple[Sequence[float], list[str]]]:
    """Ticks and labels from the finest to the coarsest."""
    if high / low < 8:  # within one decade 1-2-5 is too coarse; round steps read better
        for count in (5, 4, 3, 2):
            step = _round_step(low, high, count)
            inside = [tick for tick in _multiples(low, high, step) if tick > 0]
            yield inside, tick_labels(inside, step)
        return
    plain = low >= 0.9e-3 and high < 1.1e4
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = _decade_ticks(low, high, decades, digits)
        yield ticks, [fixed(tick) if plain else power_of_ten(tick) for tick in ticks]
    for stride in range(2, len(decades) + 1):
        chosen = [decade for decade in decades if decade % stride == 0]
        ticks = _decade_ticks(low, high, chosen, (1,))
        yield ticks, [power_of_ten(tick) for tick in ticks]
