"""Figures: files that open, the same bytes twice, the page's colours, and errors that name the cure."""

from __future__ import annotations

import math
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from feta.errors import ConfigError
from feta_lab.page import BarChart, LineChart, Point, Series, palette
from feta_lab.plots import save_figure

SVG = "{http://www.w3.org/2000/svg}svg"


def chart(title: str = "LeNet", names: tuple[str, ...] = ("feta", "lobs"), **options: bool) -> LineChart:
    points = tuple(Point(x, y, y - 0.02, y + 0.02) for x, y in ((1, 0.9), (10, 0.8), (100, 0.95)))
    return LineChart(title, "Weights kept (%)", "Accuracy", tuple(Series(name, points) for name in names), **options)


BARS = BarChart("Size", "bytes", (("dense", 4000.0, ""), ("feta", 400.0, "10× smaller"), ("lost", None, "failed")))


@pytest.fixture(autouse=True)
def needs_matplotlib() -> None:
    pytest.importorskip("matplotlib")


def test_every_format_opens(tmp_path: Path) -> None:
    paths = save_figure(chart(log_x=True, y_percent=True), tmp_path / "deep" / "fig.1", ("png", "svg", "pdf"))
    assert [path.name for path in paths] == ["fig.1.png", "fig.1.svg", "fig.1.pdf"]
    png, svg, pdf = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(png[16:20]) > 600
    assert ElementTree.fromstring(svg).tag == SVG
    assert pdf.startswith(b"%PDF")
    assert sorted(os.listdir(tmp_path / "deep")) == ["fig.1.pdf", "fig.1.png", "fig.1.svg"]


def test_the_same_charts_give_the_same_bytes(tmp_path: Path) -> None:
    formats = ("png", "svg", "pdf")
    first = save_figure([chart(log_x=True), BARS], tmp_path / "a", formats)
    second = save_figure([chart(log_x=True), BARS], tmp_path / "b", formats)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_figure_has_the_pages_colours(tmp_path: Path) -> None:
    (plain,) = save_figure(chart(names=("lobs",)), tmp_path / "plain", ("svg",))
    (ordered,) = save_figure(chart(names=("lobs",)), tmp_path / "ordered", ("svg",), order=("feta", "lobs"))
    assert palette.LIGHT[0] in plain.read_text()
    assert palette.LIGHT[1] in ordered.read_text()
    assert palette.LIGHT[0] not in ordered.read_text()


def test_a_users_settings_do_not_matter(tmp_path: Path) -> None:
    import matplotlib

    (before,) = save_figure(chart(), tmp_path / "a", ("svg",))
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        (after,) = save_figure(chart(), tmp_path / "b", ("svg",))
    assert before.read_bytes() == after.read_bytes()


def test_the_legend_says_what_hollow_markers_mean(tmp_path: Path) -> None:
    both = tuple(Point(x, 0.9, note=note, hollow=x > 1) for x, note in ((1, "pruned"), (2, "refined")))
    texts = []
    for name, points in (("both", both), ("one", both[:1])):
        figure = LineChart("LeNet", "x", "y", (Series("feta", points),))
        (path,) = save_figure(figure, tmp_path / name, ("svg",))
        texts.append(path.read_text())
    assert ("<!-- pruned -->" in texts[0], "<!-- refined -->" in texts[0]) == (True, True)
    assert "<!-- pruned -->" not in texts[1]


@pytest.mark.parametrize("columns", [None, 1, 2, 4])
def test_panels_and_awkward_data(tmp_path: Path, columns: int | None) -> None:
    awkward = [
        chart("A rather long title that must be broken into lines to fit above its panel", log_x=True),
        chart(markers_only=True),
        LineChart("empty", "x", "y", (Series("later", ()),)),
        LineChart("none", "x", "y", ()),
        LineChart(
            "gap",
            "x",
            "y",
            (Series("gap", (Point(1, 1.0), Point(2, math.nan), Point(3, None), Point(4, 2.0))),),
        ),
        LineChart("twelve", "x", "y", tuple(Series(f"long name of method {n}", (Point(1, n),)) for n in range(12))),
        BARS,
        BarChart("none", "bytes", ()),
    ]
    (path,) = save_figure(awkward, tmp_path / "fig", ("svg",), columns)
    assert ElementTree.fromstring(path.read_bytes()).tag == SVG


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"formats must be among png, svg, pdf, got 'gif'"):
        save_figure(chart(), tmp_path / "fig", ("gif",))
    with pytest.raises(ConfigError, match=r"charts must hold at least one chart"):
        save_figure([], tmp_path / "fig")
    with pytest.raises(ConfigError, match=r"columns must be >= 1, got 0"):
        save_figure(chart(), tmp_path / "fig", columns=0)
    assert os.listdir(tmp_path) == []


def test_without_matplotlib_the_error_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'feta\[plot\]'"):
        save_figure(chart(), tmp_path / "fig")
