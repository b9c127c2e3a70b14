"""Figures: files that open, the same bytes twice, one colour per name, awkward data."""

import itertools
import math
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from feta.errors import ConfigError
from feta_lab.page.figure import DARK, LIGHT, Figure, LineChart, Point, look

SVG = "{http://www.w3.org/2000/svg}svg"


def chart(title: str = "LeNet", names: tuple[str, ...] = ("feta", "lobs"), log_x: bool = False) -> LineChart:
    points = tuple(Point(x, y, y - 2, y + 2) for x, y in ((1, 90), (10, 80), (100, 95)))
    return LineChart(title, "Weights kept (%)", "Accuracy (%)", dict.fromkeys(names, points), log_x)


def svg(*charts: LineChart, **options: Any) -> str:
    return Figure("figure", charts, **options).svg.decode()


def test_both_formats_open(tmp_path: Path) -> None:
    paths = Figure("fig.1", (chart(log_x=True),)).save(tmp_path / "deep")
    assert sorted(path.name for path in paths) == sorted(os.listdir(tmp_path / "deep")) == ["fig.1.png", "fig.1.svg"]
    data = {path.suffix: path.read_bytes() for path in paths}
    assert data[".png"].startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[".png"][16:20]) > 500
    assert ElementTree.fromstring(data[".svg"]).tag == SVG


def test_the_bytes_depend_on_the_charts_alone(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in Figure("a", (chart(log_x=True), chart())).save(tmp_path / "1")]
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        second = [path.read_bytes() for path in Figure("a", (chart(log_x=True), chart())).save(tmp_path / "2")]
    assert first == second


def test_order_fixes_the_colours() -> None:
    assert LIGHT[0] in svg(chart(names=("lobs",)))
    ordered = svg(chart(names=("lobs",)), order=("feta", "lobs"))
    assert LIGHT[1] in ordered
    assert LIGHT[0] not in ordered


def test_the_legend_says_what_hollow_markers_mean() -> None:
    points = (Point(1, 0.9), Point(2, 0.9, hollow=True))
    text = svg(LineChart("LeNet", "x", "y", {"feta": points}), fills=("pruned", "refined"))
    assert "<!-- pruned -->" in text
    assert "<!-- refined -->" in text


@pytest.mark.parametrize("log_x", [False, True])
def test_an_axis_may_have_its_own_words_and_begin_at_zero(log_x: bool) -> None:
    lines = {"feta": [Point(200, 3.5), Point(60000, 4.5)]}
    text = svg(LineChart("LeNet", "x", "y", lines, log_x, {200: "few", 60000: "all"}, from_zero=True))
    assert all(f"<!-- {word} -->" in text for word in ("few", "all", "0"))
    assert not any(f"<!-- {number} -->" in text for number in (1000, 10000, 20000))


def test_panels_may_share_their_y_axis() -> None:
    low, high = ({"feta": [Point(1, top), Point(2, top / 2)]} for top in (3.0, 300.0))
    charts = tuple(LineChart("LeNet", "x", "y", lines, from_zero=True) for lines in (low, high))
    assert svg(*charts).count("<!-- 100 -->") == 1
    assert svg(*charts, same_y=True).count("<!-- 100 -->") == 2


@pytest.mark.parametrize(
    "lines",
    [
        {},
        {"later": ()},
        {"_one$x$": [Point(3, 5)]},
        {"flat": [Point(1, 0.25), Point(2, 0.25)]},
        {"all gaps": [Point(1, None), Point(2, math.nan), Point(3, math.inf)]},
        {"gap": [Point(1, 1.0), Point(2, math.nan), Point(3, None), Point(4, 2.0, 1.5)]},
        {"half a spread": [Point(1, 2, low=1), Point(2, 3, high=math.nan, low=2)]},
        {"huge": [Point(1e-12, -1e12), Point(1e12, 1e12)]},
        {f"a long name of method {n} " * 3: [Point(1, n), Point(2, -n)] for n in range(12)},
    ],
)
@pytest.mark.parametrize("log_x", [False, True])
def test_awkward_lines_are_drawn(lines: dict[str, list[Point]], log_x: bool) -> None:
    title = "A rather long title that must be broken into lines to fit above its panel"
    panel = LineChart(title, "x", "y", lines, log_x)
    text = svg(panel, chart())
    assert ElementTree.fromstring(text).tag == SVG
    assert ("<!-- no data -->" in text) == (not panel.drawn)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Figure("a", ()), "Figure 'a' must have at least one chart, got none"),
        (lambda: Point(math.nan, 1), r"Point\.x must be a finite number, got nan"),
        (lambda: Point(1, 1, low=2, high=0), r"Point\.low must be <= Point\.high"),
        (lambda: LineChart("A", "s", "y", {"feta": [Point(0, 1)]}, log_x=True), "'A', line 'feta': x must be > 0 on"),
    ],
)
def test_bad_charts_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def linear_light(colour: str) -> np.ndarray:
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]])
    x, y, z = np.cbrt(np.clip(to_xyz @ light, 0.009, 1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# Machado, Oliveira and Fernandes (2009), severity 1.
SIGHT = {
    "normal": np.eye(3),
    "protan": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deutan": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritan": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("colours", "ground"), [(LIGHT, "#ffffff"), (DARK, "#14171c")])
def test_colours_differ_from_each_other_and_from_the_page(colours: tuple[str, ...], ground: str, sight: str) -> None:
    seen = [lab(np.clip(SIGHT[sight] @ linear_light(colour), 0, 1)) for colour in colours]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12
    weights = np.array([0.2126, 0.7152, 0.0722])
    for colour in colours:
        dim, bright = sorted([weights @ linear_light(colour), weights @ linear_light(ground)])
        assert (bright + 0.05) / (dim + 0.05) >= 2.95


def test_sixty_series_all_look_different() -> None:
    assert len({look(number) for number in range(60)}) == 60
