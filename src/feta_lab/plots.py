"""Figures for papers: the page's chart objects as PNG, SVG or PDF, in the page's colours and markers.

matplotlib is optional and imported where it is used. Files carry no dates and no random ids, so the same
charts give the same bytes with the same matplotlib.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feta.errors import ConfigError
from feta.files.atomic import write_atomic
from feta_lab.page.axes import linear_axis, log_axis
from feta_lab.page.blocks import BarChart, Chart, LineChart, Series, is_number
from feta_lab.page.charts import MANY_POINTS
from feta_lab.page.numbers import show
from feta_lab.page.palette import Key, Look, assign, legend, series_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, FAINT, ACCENT = "#1c2129", "#59626f", "#e6e8ec", "#56708c"
PANEL_INCHES = (3.2, 2.3)
SINGLE_INCHES = (4.6, 3.0)

# What each format would otherwise stamp into the file: the time, or the version.
METADATA: Mapping[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "svg.hashsalt": "feta",
    "pdf.fonttype": 42,  # journals reject the default type 3
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}


def save_figure(
    charts: Chart | Sequence[Chart],
    path_stem: Path,
    formats: Sequence[str] = ("png", "svg"),
    columns: int | None = None,
    order: Sequence[str] = (),
) -> list[Path]:
    """Write `path_stem`.png, .svg ...; several charts become panels above one legend.

    `order` fixes which series names take the first colours, as in `feta_lab.page.render`.
    """
    style = _matplotlib_style()
    members = (charts,) if isinstance(charts, LineChart | BarChart) else tuple(charts)
    _check(members, formats, columns)
    path_stem = Path(path_stem)
    paths = []
    # Start from the defaults: a user's own matplotlibrc must not change a paper's figure.
    with style.context(["default", dict(STYLE)]):
        figure = _figure(members, columns or min(3, len(members)), order)
        for name in formats:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=name, dpi=200, bbox_inches="tight", metadata=METADATA[name])
            path = path_stem.with_name(f"{path_stem.name}.{name}")
            write_atomic(path, buffer.getvalue())
            paths.append(path)
    return paths


def _matplotlib_style() -> Any:
    try:
        import matplotlib.style
    except ImportError as error:
        raise ConfigError("save_figure needs matplotlib: pip install 'feta[plot]'") from error
    return matplotlib.style


def _check(charts: Sequence[Chart], formats: Sequence[str], columns: int | None) -> None:
    if not charts:
        raise ConfigError("save_figure: charts must hold at least one chart, got none")
    for name in formats:
        if name not in METADATA:
            raise ConfigError(f"save_figure: formats must be among {', '.join(METADATA)}, got '{name}'")
    if columns is not None and columns < 1:
        raise ConfigError(f"save_figure: columns must be >= 1, got {columns}")


def _figure(charts: Sequence[Chart], columns: int, order: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    looks = assign([*order, *series_names(charts)])
    rows = -(-len(charts) // columns)
    width, height = SINGLE_INCHES if len(charts) == 1 else PANEL_INCHES
    keys, fills = legend(charts, looks), _fills(charts)
    # The legend gets height of its own, so that many names do not squeeze the axes.
    legend_columns, legend_rows = _legend_shape([*(key.label for key in keys), *fills], columns * width)
    size = (columns * width, rows * height + 0.18 * legend_rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07))
    for number, chart in enumerate(charts):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(textwrap.fill(chart.title, int(11 * width)), loc="left", fontweight="bold")
        if isinstance(chart, LineChart):
            _draw_lines(axes, chart, looks, (width, height))
        else:
            _draw_bars(axes, chart, looks)
    if keys:
        _add_legend(figure, keys, fills, legend_columns)
    return figure


def _fills(charts: Sequence[Chart]) -> dict[str, bool]:
    """What filled and hollow markers say, by their notes; nothing where all markers are of one kind."""
    points = [p for chart in charts if isinstance(chart, LineChart) for s in chart.series for p in s.points]
    notes = {point.note: point.hollow for point in points if point.note}
    return notes if sorted(notes.values()) == [False, True] else {}


def _draw_lines(axes: Axes, chart: LineChart, looks: Mapping[str, Look], inches: tuple[float, float]) -> None:
    for series in chart.series:
        _draw_series(axes, series, looks[series.name], not chart.markers_only, chart.whiskers)
    _set_ticks(axes, chart, inches)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=6)
    if not chart.x_values:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=SOFT)


def _draw_series(axes: Axes, series: Series, look: Look, joined: bool, whiskers: bool) -> None:
    quiet = len(series.points) > MANY_POINTS
    style = _line_style(look, series.dashed, joined, quiet)
    for run in series.runs:
        xs = [point.x for point in run]
        axes.plot(xs, [point.height for point in run], clip_on=False, **style)
        for point in run:
            if point.hollow and not look.hollow:
                filling = {"markerfacecolor": "white", "markeredgecolor": look.light, "markeredgewidth": 1.0}
                axes.plot(point.x, point.height, clip_on=False, **(style | filling))
        if any(point.spread for point in run):
            lows, highs = zip(*(point.spread or (point.height, point.height) for point in run), strict=True)
            if joined and len(run) > 1 and not whiskers:
                axes.fill_between(xs, lows, highs, color=look.light, alpha=0.13, linewidth=0)
            else:
                axes.vlines(xs, lows, highs, color=look.light, alpha=0.6, linewidth=1)


def _line_style(look: Look, dashed: bool, joined: bool, quiet: bool = False) -> dict[str, Any]:
    return {
        "color": look.light,
        "linestyle": ("--" if dashed else "-") if joined else "none",
        "linewidth": 1.3,
        "marker": "none" if quiet and joined else look.shape,
        "markersize": {"s": 4.1, "D": 3.8, "P": 5.2, "X": 5.2, "p": 5.2}.get(look.shape, 4.6),
        "markerfacecolor": "white" if look.hollow else look.light,
        "markeredgecolor": look.light if look.hollow else "white",
        "markeredgewidth": 1.0 if look.hollow else 0.4,
    }


def _set_ticks(axes: Axes, chart: LineChart, inches: tuple[float, float]) -> None:
    """The page's own ticks, for lengths in points less about what labels and titles take."""
    across, upward = 72 * inches[0] - 60, 72 * inches[1] - 55
    choose = log_axis if chart.log_x else linear_axis
    x_axis = choose(chart.x_values, across, lambda label: 5.2 * len(label) + 6)
    y_axis = linear_axis(chart.y_values, upward, lambda _: 14, percent=chart.y_percent, most=6)
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_xlim(x_axis.low, x_axis.high)
    axes.set_ylim(y_axis.low, y_axis.high)
    axes.set_xticks([value for value, _ in x_axis.ticks], [label for _, label in x_axis.ticks])
    axes.set_xticks(x_axis.minor, [""] * len(x_axis.minor), minor=True)
    axes.set_yticks([value for value, _ in y_axis.ticks], [label for _, label in y_axis.ticks])


def _draw_bars(axes: Axes, chart: BarChart, looks: Mapping[str, Look]) -> None:
    values = [value if value is not None and is_number(value) else 0.0 for _, value, _ in chart.bars]
    colours = [looks[label].light if label in looks else ACCENT for label, _, _ in chart.bars]
    axes.barh(range(len(values)), values, color=colours, height=0.6)
    for place, (_, value, note) in enumerate(chart.bars):
        # Always right of the bar and of zero: left of it stand the labels.
        corner = (max(values[place], 0.0), place)
        text = f"{show(value)}  {note}".rstrip()
        axes.annotate(text, corner, (4, 0), textcoords="offset points", va="center", color=INK, fontsize=7)
    axes.set_yticks(range(len(values)), [textwrap.fill(label, 24) for label, _, _ in chart.bars])
    axes.invert_yaxis()
    # Bars carry their values, so the axis needs no ticks of its own; the margin holds the words.
    axes.set_xticks([])
    axes.margins(x=0.35)
    axes.set_xlabel(chart.y_label)
    axes.axvline(0, color=SOFT, linewidth=0.8)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def _add_legend(figure: Figure, keys: Sequence[Key], fills: Mapping[str, bool], columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_line_style(key.look, key.dashed, key.joined)) for key in keys]
    for hollow in fills.values():
        filling = "white" if hollow else SOFT
        handles.append(Line2D([], [], ls="none", marker="o", ms=4.6, markeredgecolor=SOFT, markerfacecolor=filling))
    options = {"ncols": columns, "frameon": False, "handlelength": 2.6}
    figure.legend(handles, [*(key.label for key in keys), *fills], loc="outside lower center", **options)


def _legend_shape(names: Sequence[str], inches: float) -> tuple[int, int]:
    """Columns and rows, as even as the width allows."""
    if not names:
        return 0, 0
    widest = max(len(name) for name in names)
    fitting = max(1, int(72 * inches / (4.9 * widest + 42)))
    rows = math.ceil(len(names) / fitting)
    return math.ceil(len(names) / rows), rows
