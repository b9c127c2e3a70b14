"""Charts as data: points and line charts. They know nothing about matplotlib or HTML.

A chart checks its data when it is made, so that drawing it cannot fail later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feta.errors import ConfigError
from feta_lab.page.numbers import is_number


@dataclass(frozen=True)
class Point:
    """One measurement.

    x: a finite number.
    y: the measured value; None, NaN and infinity leave a gap in the line.
    low, high: the ends of its spread; an end that is missing is replaced by y.
    hollow: draw an empty marker, for a point of another kind than its neighbours.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    hollow: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.x):
            raise ConfigError(f"Point.x must be a finite number, got {self.x}")
        if self.heights[0] > self.heights[2]:
            raise ConfigError(f"Point.low must be <= Point.high, got {self.low} and {self.high}")

    @property
    def heights(self) -> tuple[float, float, float]:
        """low, y and high as numbers; NaN for a gap."""
        y = self.y if self.y is not None and is_number(self.y) else math.nan
        low, high = (y if end is None or not is_number(end) else end for end in (self.low, self.high))
        return low, y, high


@dataclass(frozen=True)
class LineChart:
    """One panel of a figure.

    lines: points by name, joined in the order given; the name decides colour and marker.
    log_x: the x axis is logarithmic, and every x must be > 0.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[Point]]
    log_x: bool = False

    def __post_init__(self) -> None:
        for name, points in self.lines.items():
            least = min((point.x for point in points), default=1.0)
            if self.log_x and least <= 0:
                where = f"LineChart '{self.title}', line '{name}'"
                raise ConfigError(f"{where}: x must be > 0 on a log axis, got {least}")

    @property
    def drawn(self) -> set[str]:
        """The names of the lines that have something to draw."""
        return {name for name, points in self.lines.items() if any(is_number(point.y) for point in points)}
