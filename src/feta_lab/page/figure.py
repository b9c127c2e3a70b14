"""Figures: charts drawn once by matplotlib, for the page (inline SVG) and for files (SVG and PNG).

The bytes depend on the charts and on matplotlib's version alone: no date, no random id, no user's matplotlibrc.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.style
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from feta.errors import ConfigError
from feta.files.atomic import write_atomic
from feta_lab.page.charts import LineChart, Series
from feta_lab.page.palette import FAINT, INK, PAPER, SOFT, VARIABLES, look

STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "ytick.left": False,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a record is a dollar sign
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "svg.hashsalt": "feta",
}
# What the formats would otherwise put into the file: the time and the version.
METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}
PANEL, SINGLE = (3.2, 2.3), (4.2, 2.9)  # inches
MANY_POINTS = 40


@dataclass(frozen=True)
class Figure:
    """Charts as panels above one legend.

    name: the stem of its files, and its name for screen readers.
    charts: the panels, row by row.
    caption: stands below the figure on the page.
    order: names that take the first colours, so that a name has the same colour in several figures.
    fills: what filled and what hollow markers mean, where the charts have both.
    columns: panels in a row.
    """

    name: str
    charts: tuple[LineChart, ...]
    caption: str = ""
    order: tuple[str, ...] = ()
    fills: tuple[str, ...] = ()
    columns: int = 3

    def __post_init__(self) -> None:
        if not self.charts:
            raise ConfigError(f"Figure '{self.name}' must have at least one chart, got none")
        if self.columns < 1:
            raise ConfigError(f"Figure.columns must be >= 1, got {self.columns}")

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The figure by format, "svg" and "png"."""
        # Start from matplotlib's defaults: the user's own settings must not change a figure.
        with matplotlib.style.context(["default", dict(STYLE)]):
            canvas = _draw(self)
            return {kind: _bytes(canvas, kind) for kind in METADATA}

    def save(self, folder: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
        """Write NAME.png and NAME.svg into a folder; returns their paths.

        Raises FileError where the folder cannot be written to.
        """
        paths = [folder / f"{self.name}.{kind}" for kind in formats]
        for path, kind in zip(paths, formats, strict=True):
            write_atomic(path, self.files[kind])
        return paths

    def inline(self, prefix: str) -> Markup:
        """The SVG as an element of an HTML page; `prefix` makes its ids differ from those of other figures."""
        text = self.files["svg"].decode()
        (width, height), body = (
            re.findall(r'viewBox="0 0 (\S+) (\S+)"', text)[0],
            text.partition(">\n <defs>")[2],
        )
        # The first definitions are a style for every element of the document, here of the whole page.
        body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", body.partition("</defs>")[2])
        body = re.sub(r"<!--.*?-->\s*", "", body.replace("xlink:href", "href"), flags=re.DOTALL)
        for colour, variable in VARIABLES.items():
            body = body.replace(colour, f"var({variable})")
        pixels = 4 / 3 * float(width)  # matplotlib counts in points
        # Smaller letters could not be read on a phone; there the figure scrolls.
        limits = f"min-width: {0.85 * pixels:.0f}px; max-width: {1.35 * pixels:.0f}px"
        label = Markup.escape("; ".join(chart.title for chart in self.charts))
        box = f'viewBox="0 0 {width} {height}" style="{limits}"'
        return Markup(f'<svg {box} role="img" aria-label="{label}">{body}')


def _bytes(canvas: Canvas, kind: str) -> bytes:
    buffer = io.BytesIO()
    canvas.savefig(buffer, format=kind, dpi=150, bbox_inches="tight", metadata=METADATA[kind])
    return buffer.getvalue()


def _draw(figure: Figure) -> Canvas:
    columns = min(figure.columns, len(figure.charts))
    rows = math.ceil(len(figure.charts) / columns)
    width, height = SINGLE if len(figure.charts) == 1 else PANEL
    styles = _styles(figure)
    handles = _handles(figure, styles)
    # The legend gets height of its own, so that many names do not squeeze the axes.
    letters = max((len(str(one.get_label())) for one in handles), default=0)
    fitting = max(1, int(72 * columns * width / (4.9 * letters + 42)))
    legend_rows = math.ceil(len(handles) / fitting)
    canvas = Canvas(
        figsize=(columns * width, rows * height + 0.18 * legend_rows),
        layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07),
    )
    for number, chart in enumerate(figure.charts, start=1):
        axes = canvas.add_subplot(rows, columns, number)
        axes.set_title(textwrap.fill(chart.title, int(11 * width)))
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        for series in chart.series:
            _draw_series(axes, series, styles[series.name])
        if chart.log_x:
            _log_axis(axes)
        if not any(series.drawn for series in chart.series):
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=SOFT)
    if handles:
        # As many columns as the rows need, so that the last row is not much shorter than the others.
        even = math.ceil(len(handles) / legend_rows)
        canvas.legend(handles=handles, loc="outside lower center", ncols=even, handlelength=2.6)
    return canvas


def _styles(figure: Figure) -> dict[str, dict[str, Any]]:
    """For every name what `Axes.plot` and the legend need."""
    names = dict.fromkeys([*figure.order, *(s.name for chart in figure.charts for s in chart.series)])
    styles = {}
    for slot, name in enumerate(names):
        colour, marker = look(slot)
        size = {"s": 4.1, "D": 3.8, "o": 4.6}.get(marker, 5.2)
        edge = {"markeredgecolor": PAPER, "markeredgewidth": 0.4}
        styles[name] = {"color": colour, "linewidth": 1.3, "marker": marker, "markersize": size, **edge}
    return styles


def _draw_series(axes: Axes, series: Series, style: Mapping[str, Any]) -> None:
    """A line with markers; the spread is a band along it, or whiskers where there are only one or two points."""
    if not series.drawn:
        return
    xs = [point.x for point in series.points]
    lows, ys, highs = zip(*(point.heights for point in series.points), strict=True)
    colour = style["color"]
    marker = "none" if len(xs) > MANY_POINTS else style["marker"]
    line = {**style, "marker": marker, "linestyle": "--" if series.dashed else "-", "clip_on": False}
    axes.plot(xs, ys, **line)
    for point in series.points:
        if point.hollow:
            line |= {"markerfacecolor": PAPER, "markeredgecolor": colour, "markeredgewidth": 1.0}
            axes.plot(point.x, point.heights[1], **line)
    if (lows, highs) != (ys, ys) and len(xs) > 2:
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.13, linewidth=0)
    elif (lows, highs) != (ys, ys):
        axes.vlines(xs, lows, highs, color=colour, alpha=0.6, linewidth=1)


def _log_axis(axes: Axes) -> None:
    """Plain numbers (0.01, 1, 100) at decades, and between them where there are only a few decades."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    digits = (
        (1.0,) if high > 1e3 * low else (1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    )
    axes.xaxis.set_major_locator(LogLocator(subs=digits))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _handles(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> list[Line2D]:
    """The legend: a line per name as it first appears, then what filled and hollow markers mean."""
    every = [series for chart in figure.charts for series in chart.series]
    drawn = {series.name for series in every if series.drawn}
    lines: dict[str, Line2D] = {}
    for series in every:
        label = series.name if series.name in drawn else f"{series.name} (no data)"
        dashes = "--" if series.dashed else "-"
        lines.setdefault(series.name, Line2D([], [], label=label, linestyle=dashes, **styles[series.name]))
    grey: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 4.6, "markeredgecolor": SOFT}
    for words, fill in zip(figure.fills, (SOFT, PAPER), strict=False):
        lines[words] = Line2D([], [], label=words, markerfacecolor=fill, **grey)
    return list(lines.values())
