"""What a page is made of: frozen values that hold data and know nothing about HTML or matplotlib.

The same chart objects go to `render` (a page) and to `feta_lab.plots.save_figure` (a paper's figure).
Everything is checked here, once, so that drawing never fails halfway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from feta.errors import ConfigError
from feta_lab.page.cells import Table


def is_number(value: object) -> bool:
    """A finite number; everything else (None, NaN, infinities) is drawn as a gap."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Point:
    """One measurement; `low` and `high` bound its spread; y of None or NaN is a gap in the line.

    A hollow point is of another kind than its neighbours, which its note names.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    hollow: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.x):
            raise ConfigError(f"Point.x must be a finite number, got {self.x}")
        if self.spread is not None and self.spread[0] > self.spread[1]:
            raise ConfigError(f"Point.low must be <= Point.high, got {self.low} and {self.high}")

    @property
    def drawn(self) -> bool:
        return is_number(self.y)

    @property
    def height(self) -> float:
        """y as a number, NaN for a gap."""
        return self.y if self.y is not None and self.drawn else math.nan

    @property
    def spread(self) -> tuple[float, float] | None:
        """(low, high), an open end closed by y; None when there is no spread to draw."""
        if not self.drawn or not (is_number(self.low) or is_number(self.high)):
            return None
        low = self.low if self.low is not None and is_number(self.low) else self.height
        high = self.high if self.high is not None and is_number(self.high) else self.height
        return low, high


@dataclass(frozen=True)
class Series:
    """Points of one method, joined in the order given; the name decides colour and marker."""

    name: str
    points: tuple[Point, ...]
    dashed: bool = False

    @property
    def runs(self) -> tuple[tuple[Point, ...], ...]:
        """The points between gaps, gap by gap."""
        groups = groupby(self.points, key=lambda point: point.drawn)
        return tuple(tuple(run) for drawn, run in groups if drawn)

    @property
    def drawn(self) -> bool:
        return bool(self.runs)


@dataclass(frozen=True)
class LineChart:
    """Lines with markers, or markers alone; with `y_percent` y is a fraction, 0.97 reads 97%.

    Spreads along a line are a band, or a whisker at each point with `whiskers`.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    y_percent: bool = False
    caption: str = ""
    markers_only: bool = False
    whiskers: bool = False

    def __post_init__(self) -> None:
        for series in self.series:
            worst = min((point.x for point in series.points), default=1.0)
            if self.log_x and worst <= 0:
                where = f"LineChart '{self.title}', series '{series.name}'"
                raise ConfigError(f"{where}: x must be > 0 on a log axis, got {worst}")

    @property
    def x_values(self) -> tuple[float, ...]:
        return tuple(point.x for series in self.series for point in series.points if point.drawn)

    @property
    def y_values(self) -> tuple[float, ...]:
        """Every height that must fit, spreads included."""
        points = [point for series in self.series for point in series.points if point.drawn]
        return (
            *(point.height for point in points),
            *(end for point in points if point.spread for end in point.spread),
        )


@dataclass(frozen=True)
class BarChart:
    """Labelled values as horizontal bars (label, value, note); a label that names a series has its colour."""

    title: str
    y_label: str
    bars: tuple[tuple[str, float | None, str], ...]
    caption: str = ""


@dataclass(frozen=True)
class Facts:
    """The headline numbers: (label, value) pairs in a row."""

    items: tuple[tuple[str, str | float | int | None], ...]


@dataclass(frozen=True)
class Text:
    """Plain paragraphs under an optional heading."""

    heading: str | None
    paragraphs: tuple[str, ...]


Chart = LineChart | BarChart


@dataclass(frozen=True)
class Panels:
    """A grid of charts under one legend whose buttons act on all of them."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it; with `own_colours` its series begin at the first colour again."""

    heading: str
    blocks: tuple[Block, ...]
    own_colours: bool = False


@dataclass(frozen=True)
class Fold:
    """Blocks behind one line that opens them."""

    summary: str
    blocks: tuple[Block, ...]


VerdictName = Literal["holds", "does not hold", "depends", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """What became of one claim: the answer in numbers, the reason, and a table behind both."""

    claim: str
    verdict: VerdictName
    answer: str
    why: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Verdicts:
    """Claims and their verdicts, one below the other."""

    items: tuple[Verdict, ...]


Block = LineChart | BarChart | Table | Facts | Text | Panels | Section | Fold | Verdicts
