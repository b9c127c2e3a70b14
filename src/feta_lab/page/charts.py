"""Line charts as SVG geometry: every coordinate and every word is decided here, templates only write them.

A drawing has a fixed viewBox and scales with the page. Titles and axis names are HTML around it, so they
wrap; only tick labels live inside, and room is kept for their size on a phone, where the wide drawing
shrinks by half and its letters are enlarged (`Frame.font`) to stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from feta_lab.page.axes import Axis, linear_axis, log_axis
from feta_lab.page.blocks import LineChart, Point, Series
from feta_lab.page.numbers import show
from feta_lab.page.palette import Look

MANY_POINTS = 40


@dataclass(frozen=True)
class Frame:
    """The size of a drawing; `font` is the largest size its letters take (see style.css)."""

    width: float
    height: float
    font: float
    left: float = 0
    right: float = 0
    top: float = 10

    @property
    def bottom(self) -> float:
        return 1.3 * self.font + 10

    @property
    def plot_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def plot_height(self) -> float:
        return self.height - self.top - self.bottom

    def text_width(self, text: str) -> float:
        """An estimate on the safe side for the usual sans-serif letters; the percent sign is wide."""
        return 0.63 * self.font * (len(text) + 0.5 * text.count("%"))


PANEL = Frame(width=400, height=250, font=13)
WIDE = Frame(width=680, height=390, font=22)


@dataclass(frozen=True)
class Trace:
    """The shapes of one series on one x axis: path data, and the x of every marker."""

    line: str
    band: str
    whiskers: str
    xs: tuple[str, ...]


@dataclass(frozen=True)
class DrawnSeries:
    """One series: a trace per x axis, and what the axes share."""

    look: Look
    dashed: bool
    quiet: bool
    traces: tuple[Trace, ...]
    ys: tuple[str, ...]
    texts: tuple[str, ...]
    hollow: tuple[bool, ...]


@dataclass(frozen=True)
class DrawnAxis:
    """Ticks as (position, label) and bare positions."""

    log: bool
    ticks: tuple[tuple[str, str], ...]
    minor: tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """A line chart ready to be written; two x axes (log first, then linear) where x is logarithmic."""

    chart: LineChart
    frame: Frame
    y_axis: DrawnAxis
    x_axes: tuple[DrawnAxis, ...]
    series: tuple[DrawnSeries, ...]


def draw(chart: LineChart, looks: Mapping[str, Look], frame: Frame) -> Drawing:
    """Place the chart into the frame, its margins made as wide as the labels need."""
    y_axis = linear_axis(
        chart.y_values, frame.plot_height, lambda _: 1.5 * frame.font, percent=chart.y_percent, most=6
    )
    y_width = max((frame.text_width(label) for _, label in y_axis.ticks), default=0)
    x_width = max((frame.text_width(label) for axis in _x_axes(chart, frame) for _, label in axis.ticks), default=0)
    side = max(frame.font, x_width / 2)
    frame = Frame(frame.width, frame.height, frame.font, max(y_width + 12, side), side)
    x_axes = _x_axes(chart, frame)
    across = [_across(axis, frame) for axis in x_axes]
    down = _down(y_axis, frame)
    return Drawing(
        chart,
        frame,
        _drawn_axis(y_axis, down),
        tuple(_drawn_axis(axis, place) for axis, place in zip(x_axes, across, strict=True)),
        tuple(_drawn_series(series, chart, looks[series.name], across, down) for series in chart.series),
    )


Place = Callable[[float], float]


def _x_axes(chart: LineChart, frame: Frame) -> list[Axis]:
    def size(label: str) -> float:
        return frame.text_width(label) + 0.8 * frame.font

    linear = linear_axis(chart.x_values, frame.plot_width, size)
    return [log_axis(chart.x_values, frame.plot_width, size), linear] if chart.log_x else [linear]


def _across(axis: Axis, frame: Frame) -> Place:
    return lambda x: frame.left + frame.plot_width * axis.place(x)


def _down(axis: Axis, frame: Frame) -> Place:
    return lambda y: frame.top + frame.plot_height * (1 - axis.place(y))


def _drawn_axis(axis: Axis, place: Place) -> DrawnAxis:
    ticks = tuple((_number(place(value)), label) for value, label in axis.ticks)
    return DrawnAxis(axis.log, ticks, tuple(_number(place(value)) for value in axis.minor))


def _drawn_series(series: Series, chart: LineChart, look: Look, across: list[Place], down: Place) -> DrawnSeries:
    marked = [point for run in series.runs for point in run]
    return DrawnSeries(
        look,
        series.dashed,
        # Markers on a long curve would merge into a ribbon; they show under the pointer only.
        len(marked) > MANY_POINTS and not chart.markers_only,
        tuple(_trace(series.runs, place, down, chart) for place in across),
        tuple(_number(down(point.height)) for point in marked),
        tuple(_text(series.name, point, chart) for point in marked),
        tuple(look.hollow or point.hollow for point in marked),
    )


def _trace(runs: Sequence[Sequence[Point]], across: Place, down: Place, chart: LineChart) -> Trace:
    lines, bands, whiskers = [], [], []
    for run in runs:
        joined = len(run) > 1 and not chart.markers_only
        if joined:
            lines.append(_path([(across(p.x), down(p.height)) for p in run]))
        if joined and not chart.whiskers:
            if any(point.spread for point in run):
                bands.append(_band(run, across, down))
        else:
            ends = [(across(point.x), point.spread) for point in run]
            whiskers += [_path([(x, down(ends[0])), (x, down(ends[1]))]) for x, ends in ends if ends]
    xs = tuple(_number(across(point.x)) for run in runs for point in run)
    return Trace("".join(lines), "".join(bands), "".join(whiskers), xs)


def _band(run: Sequence[Point], across: Place, down: Place) -> str:
    """The outline of a run's spread: along the high ends, back along the low ones."""
    ends = [(across(point.x), point.spread or (point.height, point.height)) for point in run]
    there = [(x, down(high)) for x, (_, high) in ends]
    back = [(x, down(low)) for x, (low, _) in reversed(ends)]
    return _path(there + back) + "z"


def _path(corners: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in corners)


def _text(name: str, point: Point, chart: LineChart) -> str:
    """What the tooltip says, a line each: name, x, y, spread, note."""
    lines = [name, f"{chart.x_label}: {show(point.x)}", f"{chart.y_label}: {show(point.y, chart.y_percent)}"]
    if point.spread:
        low, high = (show(end, chart.y_percent) for end in point.spread)
        lines.append(f"Spread: {low} to {high}")
    return "\n".join([*lines, point.note] if point.note else lines)


def _number(value: float) -> str:
    """A coordinate to a tenth, without a trailing zero."""
    return f"{value:.1f}".removesuffix(".0")
