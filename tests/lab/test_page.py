"""Pages: what is written, what awkward data does, and how a page behaves in a browser."""

from __future__ import annotations

import html.parser
import itertools
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest

from feta.errors import ConfigError, FileError
from feta_lab.page import (
    BarChart,
    Facts,
    LineChart,
    Panels,
    Point,
    Section,
    Series,
    Table,
    Text,
    palette,
    render,
    write,
)
from feta_lab.page.axes import linear_axis, log_axis
from feta_lab.page.numbers import show, show_column, tick_labels

METHODS = ("feta", "net_trim", "lobs", "corenet", "threshold", "wanda", "refit", "random")
VOID = {"meta", "link", "br"}


def curve(name: str, level: float = 0.9, dashed: bool = False) -> Series:
    heights = [level - 0.01 * step for step in range(9)]
    points = [Point(x, y, y - 0.01, y + 0.01, "seeds 0-2") for x, y in zip(range(10, 100, 10), heights, strict=True)]
    return Series(name, tuple(points), dashed)


def chart(title: str = "LeNet", log_x: bool = True, names: tuple[str, ...] = METHODS) -> LineChart:
    series = tuple(curve(name, 0.98 - 0.03 * index) for index, name in enumerate(names))
    return LineChart(title, "Weights kept (%)", "Accuracy", series, log_x=log_x, y_percent=True)


def everything() -> list[object]:
    table = Table("Results", ("Method", "Accuracy", "Bytes"), (("a", 0.5, 900), ("b", None, 12000), ("c", 0.75, 30)))
    bars = BarChart("Size", "bytes", (("dense", 4000.0, ""), ("feta", 400.0, "10× smaller")))
    return [
        Facts((("smaller", "10×"), ("runs", 1296), ("seconds", None))),
        Text("Aim", ("One paragraph.", "Another.")),
        Section("Panels", (Panels((chart("A"), chart("B"), bars)), Section("Deeper", (chart("C"),)))),
        bars,
        table,
    ]


def page(*blocks: object) -> str:
    return render("Title", "Subtitle", blocks, {"python": "3.11"})  # type: ignore[arg-type]


class Reader(html.parser.HTMLParser):
    """Checks that every tag is closed, and keeps tags and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)


def coordinates(text: str) -> list[str]:
    return [
        value for _, attrs in Reader(text).tags for key, value in attrs.items() if key in ("d", "x", "y") and value
    ]


# What is written


def test_a_page_is_well_formed_and_says_everything() -> None:
    reader = Reader(page(*everything()))
    words = "".join(reader.words)
    for word in (
        "Title",
        "Subtitle",
        "10×",
        "1,296",
        "One paragraph.",
        "Deeper",
        "4,000",
        "10× smaller",
        "python",
    ):
        assert word in words
    assert [tag for tag, _ in reader.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h2", "h3", "h2"]


def test_the_same_blocks_give_the_same_bytes() -> None:
    assert page(*everything()) == page(*everything())


def test_a_page_asks_the_network_for_nothing() -> None:
    text = page(*everything())
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    links = [attrs[key] for _, attrs in Reader(text).tags for key in ("src", "href") if key in attrs]
    assert all(link is not None and (link.startswith("#m") or link == "data:,") for link in links)


def test_a_page_with_one_chart_is_small() -> None:
    assert len(page(chart()).encode()) < 40_000


def test_names_cannot_inject_markup() -> None:
    evil = '"><script>alert(1)</script>'
    bad = Series(evil, (Point(1, 2, note=evil),))
    line = LineChart(evil, evil, evil, (bad,), caption=evil)
    text = render(
        evil,
        evil,
        [
            Section(evil, (Panels((line,)), line)),
            BarChart(evil, evil, ((evil, 1.0, evil),), evil),
            Table(evil, (evil,), ((evil,),)),
            Facts(((evil, evil),)),
            Text(evil, (evil,)),
        ],
        {evil: evil},
    )
    assert "<script>alert" not in text
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1


def test_a_name_keeps_its_colour_on_the_whole_page() -> None:
    text = page(chart(names=("a", "b")), Panels((chart(names=("b", "a")), chart(names=("c", "b")))))
    keys = re.findall(r'class="key c(\d)" data-slot="(\d)".*?<span>(\w)</span>', text)
    assert set(keys) == {("0", "0", "a"), ("1", "1", "b"), ("2", "2", "c")}


def test_order_fixes_the_colours() -> None:
    text = render("t", "", [chart(names=("b",))], {}, order=("a", "b"))
    assert 'class="key c1" data-slot="1"' in text


def test_a_bar_named_like_a_series_has_its_colour() -> None:
    text = page(chart(names=("a", "feta")), BarChart("Size", "bytes", (("dense", 2.0, ""), ("feta", 1.0, ""))))
    assert '<li class="c1" data-slot="1"><span class="label">feta' in text
    assert '<li><span class="label">dense' in text


def test_only_logarithmic_charts_have_a_switch() -> None:
    assert 'class="log"' in page(chart(log_x=True))
    assert 'class="log"' not in page(chart(log_x=False))


def test_missing_and_numeric_cells() -> None:
    text = page(Table("T", ("Name", "Value", "Mixed"), (("a", 1.5, "x"), ("b", None, None), ("c", math.nan, 3))))
    assert '<td class="right">1.5</td>' in text
    assert text.count('<td class="right" data-key="">–</td>') == 2
    assert '<td class="left">x</td>' in text


def test_columns_of_one_unit_are_numeric_and_of_two_are_not() -> None:
    same = page(Table("T", ("Size",), (("1.5 kB",), ("900 kB",))))
    mixed = page(Table("T", ("Size",), (("1.5 MB",), ("900 kB",))))
    assert 'data-key="1.5"' in same
    assert "data-numeric" not in Reader(mixed).tags.__repr__()


# Awkward data


@pytest.mark.parametrize(
    "series",
    [
        (),
        (Series("empty", ()),),
        (Series("one", (Point(3, 5),)),),
        (Series("zero", (Point(0, 0),)),),
        (Series("flat", (Point(1, 0.25), Point(2, 0.25))),),
        (Series("all gaps", (Point(1, None), Point(2, math.nan))),),
        (Series("infinite", (Point(1, math.inf), Point(2, 3.0))),),
        (Series("nearly equal", (Point(1, 0.1 + 0.2), Point(2, 0.3))),),
        (Series("half a spread", (Point(1, 2, low=1), Point(2, 3, high=math.nan, low=2))),),
        (Series("huge", (Point(-1e12, -1e12), Point(1e12, 1e12))),),
        (Series("tiny", (Point(1e-12, 1e-12), Point(2e-12, 3e-12))),),
        tuple(Series(f"a long name for method number {n} " * 3, (Point(1, n), Point(2, -n))) for n in range(12)),
    ],
)
@pytest.mark.parametrize("markers_only", [False, True])
def test_awkward_series_are_drawn(series: tuple[Series, ...], markers_only: bool) -> None:
    line = LineChart("t", "x", "y", series, markers_only=markers_only)
    numbers = coordinates(page(line, Panels((line,))))
    assert not [number for number in numbers if "nan" in number or "inf" in number]


def test_a_gap_breaks_the_line_and_a_lone_point_keeps_its_whisker() -> None:
    heights = [1.0, 2.0, None, 3.0, math.nan, 4.0, 5.0]
    points = (Point(x, y, *((y - 0.1, y + 0.1) if y else ())) for x, y in enumerate(heights))
    text = page(LineChart("t", "x", "y", (Series("gappy", tuple(points)),)))
    paths = {
        attrs["class"]: attrs["d"] or "" for tag, attrs in Reader(text).tags if tag == "path" and "class" in attrs
    }
    assert paths["band"].count("M") == 2
    assert paths["whiskers"].count("M") == 1
    assert text.count('class="mark"') == 5


def test_series_without_data_say_so() -> None:
    text = page(LineChart("t", "x", "y", (Series("later", ()),)))
    assert "later (no data)" in text
    assert ">no data</text>" in text


@pytest.mark.parametrize("x", [0.0, -2.0])
def test_a_log_axis_needs_positive_x(x: float) -> None:
    with pytest.raises(ConfigError, match=r"LineChart 'speed', series 'feta': x must be > 0 on a log axis, got"):
        LineChart("speed", "s", "y", (Series("feta", (Point(1, 1), Point(x, 1))),), log_x=True)


def test_bad_points_and_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Point\.x must be a finite number, got nan"):
        Point(math.nan, 1)
    with pytest.raises(ConfigError, match=r"Point\.low must be <= Point\.high"):
        Point(1, 1, low=2, high=0)
    with pytest.raises(ConfigError, match=r"Table 'T', row 1: must have 2 cells, got 1"):
        Table("T", ("a", "b"), ((1, 2), (3,)))
    with pytest.raises(ConfigError, match=r"Table\.align must have 2 entries"):
        Table("T", ("a", "b"), (), align=("left",))


# Numbers, axes, colours


def test_numbers_read_well() -> None:
    assert [show(v) for v in (None, 3, 1234567, 0.12345, -2.5, 1e-7)] == [
        "–",
        "3",
        "1,234,567",
        "0.1235",
        "−2.5",
        "1e−07",
    ]
    assert show(0.97234, percent=True) == "97.23%"
    assert show_column([0.981, 0.5]) == ["0.981", "0.500"]
    assert show_column([0.001, 1234.0]) == ["0.001", "1,234"]
    assert tick_labels([0.9, 0.925, 0.95], 0.025, percent=True) == ["90.0%", "92.5%", "95.0%"]
    assert tick_labels([0, 5e5, 1e6], 5e5) == ["0", "0.5M", "1.0M"]


@pytest.mark.parametrize("high", [1.0, 3.7, 99.0, 12345.0, 8e9, 2e-6])
@pytest.mark.parametrize("length", [80.0, 300.0])
def test_tick_labels_never_touch(high: float, length: float) -> None:
    def size(label: str) -> float:
        return 8.0 * len(label)

    for axis in (linear_axis([0.0, high], length, size), log_axis([high / 5000, high], length, size)):
        assert axis.ticks
        assert axis.fits(length, size)
        assert all(0 <= axis.place(value) <= 1 for value, _ in axis.ticks)


def test_log_axes_show_decades() -> None:
    assert [label for _, label in log_axis([0.01, 1000], 300, len).ticks] == [
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
        "1000",
    ]
    assert [label for _, label in log_axis([1, 1e6], 300, len).ticks][::6] == ["10⁰", "10⁶"]
    assert [label for _, label in log_axis([20, 40], 300, len).ticks] == ["20", "25", "30", "35", "40"]


def test_percent_axes_stay_within_zero_and_one() -> None:
    axis = linear_axis([0.0, 0.99], 300, len, percent=True)
    assert (axis.low, axis.high) == (0.0, 1.0)


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
@pytest.mark.parametrize(("colours", "ground"), [(palette.LIGHT, "#ffffff"), (palette.DARK, "#14171c")])
def test_colours_differ_from_each_other_and_from_the_page(colours: tuple[str, ...], ground: str, sight: str) -> None:
    seen = [lab(np.clip(SIGHT[sight] @ linear_light(colour), 0, 1)) for colour in colours]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12
    weights = np.array([0.2126, 0.7152, 0.0722])
    for colour in colours:
        dim, bright = sorted([weights @ linear_light(colour), weights @ linear_light(ground)])
        assert (bright + 0.05) / (dim + 0.05) >= 2.95


def test_sixty_series_all_look_different() -> None:
    looks = palette.assign(str(number) for number in range(60)).values()
    assert len({(look.colour, look.shape, look.hollow) for look in looks}) == 60


# Writing


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "page.html"
    write(path, "old")
    write(str(path), "né\n")
    assert path.read_bytes() == "né\n".encode()
    assert os.listdir(path.parent) == ["page.html"]


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=r"cannot write .*page\.html: No space left"):
        write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_page_that_cannot_be_encoded_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write(tmp_path / "page.html", "\ud800")
    assert os.listdir(tmp_path) == []


# In a browser


@pytest.fixture
def opened(browser, tmp_path):  # type: ignore[no-untyped-def]
    """Opens blocks as a file:// page; afterwards the console must be empty and nothing fetched."""

    def visit(*blocks: object):  # type: ignore[no-untyped-def]
        write(tmp_path / "page.html", page(*blocks))
        browser.get((tmp_path / "page.html").as_uri())
        return browser

    browser.get_log("browser")
    yield visit
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)") == []


def find(root, selector):  # type: ignore[no-untyped-def]
    return root.find_elements("css selector", selector)


@pytest.mark.browser
def test_a_toggle_hides_a_series_in_all_panels(opened) -> None:  # type: ignore[no-untyped-def]
    browser = opened(Panels((chart("A"), chart("B"))), chart("C"))
    key = find(browser, ".panels .key")[1]
    groups = find(browser, 'g[data-slot="1"]')
    key.click()
    assert [group.is_displayed() for group in groups] == [False, False, True]
    assert key.get_attribute("aria-pressed") == "false"
    key.send_keys(" ")
    assert [group.is_displayed() for group in groups] == [True, True, True]
    key.send_keys("\ue007")  # Enter
    assert [group.is_displayed() for group in groups] == [False, False, True]


@pytest.mark.browser
def test_hovering_shows_the_nearest_point(opened) -> None:  # type: ignore[no-untyped-def]
    from selenium.webdriver import ActionChains

    browser = opened(chart())
    mark = find(browser, 'g[data-slot="3"] .mark')[4]
    ActionChains(browser).move_to_element(mark).move_by_offset(2, 1).perform()
    tip = find(browser, "#tip")[0]
    assert tip.text.split("\n") == [
        "corenet",
        "Weights kept (%): 50",
        "Accuracy: 85.00%",
        "Spread: 84.00% to 86.00%",
        "seeds 0-2",
    ]
    ActionChains(browser).move_to_element(find(browser, "h1")[0]).perform()
    assert not tip.is_displayed()


@pytest.mark.browser
def test_the_keyboard_reads_points(opened) -> None:  # type: ignore[no-untyped-def]
    from selenium.webdriver import ActionChains, Keys

    browser = opened(chart(names=("first", "second"), log_x=False))
    tip = find(browser, "#tip")[0]
    for key, words in (
        (Keys.TAB * 3, ("first", ": 10")),
        (Keys.ARROW_RIGHT, ("first", ": 20")),
        (Keys.ARROW_DOWN, ("second", ": 20")),
        (Keys.ARROW_LEFT, ("second", ": 10")),
    ):
        ActionChains(browser).send_keys(key).perform()
        assert all(word in tip.text for word in words)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


@pytest.mark.browser
def test_the_switch_swaps_log_and_linear(opened) -> None:  # type: ignore[no-untyped-def]
    browser = opened(chart())
    button = find(browser, ".log")[0]

    def state():  # type: ignore[no-untyped-def]
        xs = [float(mark.get_attribute("x")) for mark in find(browser, 'g[data-slot="0"] .mark')]
        return np.ptp(np.diff(xs)), [axis.is_displayed() for axis in find(browser, ".x-axis")]

    before = state()
    button.click()
    spread, shown = state()
    assert before[0] > 10
    assert spread < 0.3  # ten per cent apart each: equal steps on a linear axis
    assert shown == [False, True]
    button.click()
    assert state() == before


@pytest.mark.browser
def test_a_click_on_a_header_sorts(opened) -> None:  # type: ignore[no-untyped-def]
    rows = (("b", 2.5, "10 kB"), ("a", None, "9 kB"), ("C", -1, "1,200 kB"))
    browser = opened(Table("T", ("Name", "Value", "Size"), rows))
    heads = find(browser, "th")

    def order(column: int) -> str:
        find(heads[column], "button")[0].click()
        return "".join(cell.text for cell in find(browser, "td:first-child"))

    assert order(1) == "Cba"
    assert order(1) == "bCa"  # the missing value stays last
    assert heads[1].get_attribute("aria-sort") == "descending"
    assert order(2) == "abC"
    assert order(0) == "abC"
    assert heads[1].get_attribute("aria-sort") is None


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_clipped_or_overlaps(opened, width) -> None:  # type: ignore[no-untyped-def]
    browser = opened(*everything(), LineChart("t", "x", "y", (Series("big", (Point(0, -2e6), Point(123456, 3e6))),)))
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        boxes = browser.execute_script(
            "return [...document.querySelectorAll('.chart')].map(chart => [...chart.querySelectorAll('text')]"
            ".map(text => text.getBoundingClientRect()).filter(box => box.width)"
            ".map(box => [box.left, box.top, box.right, box.bottom]))"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    for labels in boxes:
        assert all(left >= 0 and right <= width for left, _, right, _ in labels)
        for a, b in itertools.combinations(labels, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 2 or b[3] <= a[1] + 2
