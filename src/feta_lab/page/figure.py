"""Figures: charts as data, drawn once by matplotlib for the page (inline SVG) and for files (SVG and PNG).

A chart checks its data when it is made, so that drawing it cannot fail later. The bytes depend on the charts and on
matplotlib's version alone: no date, no random id, no user's matplotlibrc.
"""

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.style
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from feta.errors import ConfigError, printable
from feta.files.atomic import write_atomic
from feta_lab.results.forms import is_number

TEMPLATES = Path(__file__).parent / "templates"
STYLE = TEMPLATES / "figure.mplstyle"
# What the formats would otherwise put into the file: the time and the version.
METADATA = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}
COLUMNS, PANEL, SINGLE = 3, (3.2, 2.3), (4.2, 2.9)  # panels in a row; sizes in inches
# The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), moved a little until each has a contrast of
# 3:1 with the page, light or dark, and every pair can be told apart with the three kinds of colour blindness (the
# tests measure both). The marker repeats what the colour says.
LIGHT = ("#065791", "#cf5c21", "#239a61", "#c069a4", "#13303a", "#d18300", "#2a9de4", "#5d5202", "#7d3fd1")
DARK = ("#2a85d9", "#f05c2e", "#1ab979", "#c56cab", "#b3c1c1", "#fdb418", "#9fd4ff", "#f8ec80", "#9a6bff")
MARKERS = "os^DvPXp>"
PAPER, SOFT = "#ffffff", "#59626f"

# On a page every colour of a figure becomes a variable of the stylesheet, which has a light and a dark value.
VARIABLES = {PAPER: "--page", "#1c2129": "--ink", SOFT: "--soft", "#e6e8ec": "--faint"}
VARIABLES |= {colour: f"--c{number}" for number, colour in enumerate(LIGHT)}
LONGEST = 120  # letters of a name or a title
MANY_POINTS = 40  # markers on a longer curve would merge into a ribbon


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
    ticks: what stands at these places of the x axis, instead of round numbers.
    from_zero: the y axis begins at 0, or below where the lines do.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[Point]]
    log_x: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    from_zero: bool = False

    def __post_init__(self) -> None:
        for name, points in self.lines.items():
            least = min((point.x for point in points), default=1.0)
            if self.log_x and least <= 0:
                raise ConfigError(
                    f"LineChart '{self.title}', line '{name}': x must be > 0 on a log axis, got {least}"
                )

    @property
    def drawn(self) -> set[str]:
        """The names of the lines that have something to draw."""
        return {name for name, points in self.lines.items() if any(is_number(point.y) for point in points)}


@dataclass(frozen=True)
class Figure:
    """Charts as panels above one legend.

    name: the stem of its files.
    charts: the panels, row by row.
    caption: stands below the figure on the page.
    order: names that take the first colours, so that a name has the same colour in several figures.
    fills: what filled and what hollow markers mean, where the charts have both.
    same_y: all panels have the y axis of all their lines.
    """

    name: str
    charts: tuple[LineChart, ...]
    caption: str = ""
    order: tuple[str, ...] = ()
    fills: tuple[str, ...] = ()
    same_y: bool = False

    def __post_init__(self) -> None:
        if not self.charts:
            raise ConfigError(f"Figure '{self.name}' must have at least one chart, got none")

    @cached_property
    def svg(self) -> bytes:
        """The figure as an SVG file."""
        return self._saved("svg")

    @cached_property
    def _canvas(self) -> Canvas:
        return _draw(self)

    def _saved(self, kind: str, columns: int | None = None) -> bytes:
        buffer = io.BytesIO()
        # Start from matplotlib's defaults: the user's own settings must not change a figure.
        with matplotlib.style.context(["default", STYLE]):
            canvas = self._canvas if columns is None else _draw(self, columns)
            canvas.savefig(buffer, format=kind, metadata=METADATA[kind])
        return buffer.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.svg and NAME.png into a folder; returns their paths. Raises FileError."""
        paths = [folder / f"{self.name}.{kind}" for kind in ("svg", "png")]
        for path, data in zip(paths, (self.svg, self._saved("png")), strict=True):
            write_atomic(path, data)
        return paths

    def inline(self, prefix: str) -> Markup:
        """The SVG as an element of an HTML page; `prefix` makes its ids differ from those of other figures.

        Of several panels there are two: beside each other, and stacked for a phone, where letters keep their size.
        """
        if len(self.charts) == 1:
            return self._element(self.svg, prefix)
        stacked = self._saved("svg", columns=1)
        return self._element(self.svg, prefix, "beside") + self._element(stacked, f"{prefix}s-", "stacked")

    def _element(self, svg: bytes, prefix: str, kind: str = "") -> Markup:
        text = svg.decode()
        width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', text)[0]
        # The first definitions are a style for every element of the document, here of the whole page.
        body = text.partition("</defs>")[2].replace("xlink:href", "href")
        body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", body)
        body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
        for colour, variable in VARIABLES.items():
            body = body.replace(colour, f"var({variable})")
        pixels = 4 / 3 * float(width)  # matplotlib counts in points
        label = Markup.escape("; ".join(_words(chart.title) for chart in self.charts))
        about = f'style="max-width: {1.35 * pixels:.0f}px" role="img" aria-label="{label}"'
        return Markup(f'<svg class="{kind}" viewBox="0 0 {width} {height}" {about}>{body}')


def _draw(figure: Figure, columns: int = COLUMNS) -> Canvas:
    """The panels of a figure, at most so many beside each other."""
    columns = min(columns, len(figure.charts))
    rows = math.ceil(len(figure.charts) / columns)
    width, height = SINGLE if len(figure.charts) == 1 else PANEL
    styles = _styles(figure)
    handles = _handles(figure, styles)
    # The legend gets height of its own, so that many names do not squeeze the axes.
    letters = max((len(str(one.get_label())) for one in handles), default=0)
    legend_rows = math.ceil(len(handles) / max(1, int(72 * columns * width / (4.9 * letters + 42))))
    canvas = Canvas(figsize=(columns * width, rows * height + 0.18 * legend_rows))
    panels: list[Axes] = []
    for number, chart in enumerate(figure.charts, start=1):
        shared = panels[0] if panels and figure.same_y else None
        labels = {"xlabel": _words(chart.x_label), "ylabel": _words(chart.y_label)}
        axes = canvas.add_subplot(rows, columns, number, sharey=shared, **labels)
        panels.append(axes)
        axes.set_title(textwrap.fill(_words(chart.title), int(11 * width)))
        for name, points in chart.lines.items():
            if name in chart.drawn:
                _draw_line(axes, points, styles[name])
        if chart.log_x:
            _log_axis(axes)
        elif not chart.ticks:
            axes.locator_params(axis="x", integer=True)  # layers, percent, components: never half of one
        if chart.ticks:
            axes.set_xticks(list(chart.ticks), list(map(_words, chart.ticks.values())), minor=False)
            axes.minorticks_off()
        if not chart.drawn:
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=SOFT)
    for axes, chart in zip(panels, figure.charts, strict=True):  # of a shared axis when all lines are drawn
        if chart.from_zero:
            axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    if handles:
        columns = math.ceil(len(handles) / legend_rows)
        canvas.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)
    return canvas


def _words(text: str) -> str:
    """Somebody else's words in a figure: on one line, short, and without letters that SVG does not have."""
    text = printable(text if len(text) <= LONGEST else text[:LONGEST] + "…")
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of a legend


def _styles(figure: Figure) -> dict[str, dict[str, Any]]:
    """For every name what `Axes.plot` and the legend need."""
    names = dict.fromkeys([*figure.order, *(name for chart in figure.charts for name in chart.lines)])
    looks = {name: look(slot) for slot, name in enumerate(names)}
    sizes = {"s": 4.1, "D": 3.8, "o": 4.6}
    return {n: {"color": c, "marker": m, "markersize": sizes.get(m, 5.2)} for n, (c, m) in looks.items()}


def look(slot: int) -> tuple[str, str]:
    """Colour and marker of the series with this number; the first 81 pairs differ."""
    # Each round of colours moves the markers by one, so that no pair comes twice.
    return LIGHT[slot % len(LIGHT)], MARKERS[(slot + slot // len(LIGHT)) % len(MARKERS)]


def _draw_line(axes: Axes, points: Sequence[Point], style: Mapping[str, Any]) -> None:
    """A line with markers; the spread is a band along it, or whiskers where there are only one or two points."""
    xs = [point.x for point in points]
    lows, ys, highs = zip(*(point.heights for point in points), strict=True)
    style = {**style, "clip_on": False} | ({"marker": "none"} if len(xs) > MANY_POINTS else {})
    axes.plot(xs, ys, **style)
    for point in points:
        if point.hollow:
            empty = {"markerfacecolor": PAPER, "markeredgecolor": style["color"], "markeredgewidth": 1.0}
            axes.plot(point.x, point.heights[1], **style, **empty)
    if (lows, highs) != (ys, ys):
        if len(xs) > 2:
            axes.fill_between(xs, lows, highs, color=style["color"], alpha=0.13, linewidth=0)
        else:
            axes.vlines(xs, lows, highs, color=style["color"], alpha=0.6, linewidth=1)


def _log_axis(axes: Axes) -> None:
    """Plain numbers (0.01, 1, 100) at decades, and between them where there are only a few decades."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    few = (1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 200 * low else few))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _handles(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> Sequence[Line2D]:
    """The legend: an entry per name, then what filled and hollow markers mean."""
    drawn = set().union(*(chart.drawn for chart in figure.charts))
    lines = [
        Line2D([], [], label=_words(name) + ("" if name in drawn else " (no data)"), **styles[name])
        for name in dict.fromkeys(name for chart in figure.charts for name in chart.lines)
    ]
    grey: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 4.6, "markeredgecolor": SOFT}
    fills = zip(figure.fills, (SOFT, PAPER), strict=False)
    return lines + [Line2D([], [], label=words, markerfacecolor=fill, **grey) for words, fill in fills]
