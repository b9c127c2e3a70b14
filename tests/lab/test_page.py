"""Pages: what is written, tables as files, and how a page behaves in a browser."""

import math
import os
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from feta.errors import ConfigError, FileError
from feta_lab.claims import Finding
from feta_lab.page.blocks import Facts, Fold, Section, Shown, Table, Text, Verdicts, show, show_column
from feta_lab.page.document import comma_separated, latex, markdown, render, write
from feta_lab.page.figure import DARK, LIGHT, Figure, LineChart, Point
from reader import Reader

EVIL = '"><script>alert(1)</script><!-- -->'


def figure(name: str = "accuracy", *titles: str) -> Figure:
    points = tuple(Point(x, 100 - x / 10, 80, 100) for x in range(10, 100, 10))
    lines = dict.fromkeys(("feta", "lobs", "corenet"), points)
    charts = tuple(LineChart(title, "Kept (%)", "Accuracy (%)", lines, log_x=True) for title in titles or ("LeNet",))
    return Figure(name, charts, "Three methods.")


def everything() -> list[object]:
    rows = (("a", 0.5, 900), ("b", None, 12000), ("c", 0.75, 30))
    wide = Table("Wide", tuple(f"a long column {n}" for n in range(12)), (tuple(range(12)),))
    return [
        Facts((("smaller", "10×"),)),
        Section("Panels", (figure("a", "A", "B", "C"), Section("Deeper", (Text("One paragraph.", "Another."),)))),
        Fold("More", (figure(), wide)),
        Table("Results", ("Method", "Accuracy", "Bytes"), rows, frozenset({(2, 1)})),
    ]


def page(*blocks: object) -> str:
    return render("Title", "Subtitle", blocks, {"python": "3.11"}, contents=True)  # type: ignore[arg-type]


# What is written


def test_a_page_is_well_formed_and_says_everything() -> None:
    text = page(*everything())
    reader = Reader(text)
    for word in ("Title", "Subtitle", "10×", "One paragraph.", "Deeper", "12,000", "Three methods.", "python"):
        assert word in reader.words
    assert [tag for tag, _ in reader.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h3", "h2"]
    assert text == page(*everything())
    assert text.startswith("<!doctype html>")
    # Ids are unique, links lead to them, and nothing is asked of the network.
    tags = reader.tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for _, attrs in tags if "href" in attrs]
    assert {str(link)[1:] for link in links if link != "data:,"} <= set(ids)
    assert "panels" in ids
    assert not re.search(r"https?://|@import|url\((?!#)| src=", text)


def test_a_figure_takes_its_colours_from_the_stylesheet() -> None:
    drawing = re.findall(r"<figure>.*?</figure>", page(figure()), flags=re.DOTALL)[0]
    assert not re.search("#[0-9a-f]{6}", drawing)
    assert {f"var(--c{n})" for n in range(3)} | {"var(--page)", "var(--ink)", "var(--soft)"} <= set(
        re.findall(r"var\(--\w+\)", drawing)
    )
    style = page().partition("</style>")[0]
    assert all(colour in style for colour in (*LIGHT, *DARK))


def test_names_cannot_inject_markup() -> None:
    chart = LineChart(EVIL, EVIL, EVIL, {EVIL: [Point(1, 2)]})
    blocks = [
        Section(EVIL, (Figure("x", (chart,), EVIL), Fold(EVIL, ()))),
        Table(EVIL, (EVIL,), ((EVIL,),)),
        Facts(((EVIL, EVIL),)),
        Text(EVIL),
        Verdicts((Finding("", EVIL, "holds", EVIL, EVIL),)),
    ]
    text = render(EVIL, EVIL, blocks, {EVIL: EVIL}, contents=True)
    assert "<script>alert" not in text
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1


def test_verdicts_and_folds() -> None:
    items = tuple(Finding("", f"claim <{n}>", "does not hold", "numbers", "reason") for n in range(4))
    text = page(Verdicts(items), Fold("more", (Text("inside"),)))
    assert text.count('class="does-not-hold"') == 4
    assert text.count("<details>") == 4  # each opens by itself
    assert "claim &lt;0&gt;" in text
    assert "<summary>more</summary>" in text


def test_missing_and_numeric_cells() -> None:
    rows = (("a", 1.5, "x"), ("b", None, None), ("c", math.nan, 3))
    text = page(Table("T", ("Name", "Value", "Mixed"), rows, frozenset({(0, 1)})))
    assert '<td class="right" data-label="Value"><strong>1.5</strong></td>' in text
    assert text.count('<td class="right" data-label="Value" data-key="">–</td>') == 2
    assert '<td class="left" data-label="Mixed">x</td>' in text


def test_rows_of_equal_length_and_numbers_that_read_well() -> None:
    with pytest.raises(ConfigError, match=r"Table 'T', row 1: must have 2 cells, got 1"):
        Table("T", ("a", "b"), ((1, 2), (3,)))
    values = (None, 3, 1234567, 0.12345, -2.5, 1e-7, True)
    assert [show(v) for v in values] == ["–", "3", "1,234,567", "0.1235", "−2.5", "1e−07", "yes"]
    assert show_column([0.981, 0.5]) == ["0.981", "0.500"]
    assert show_column([0.001, 1234.0]) == ["0.001", "1,234"]


# Files


TABLE = Table(
    "A caption",
    ("name", "50% & more", "time|s"),
    (("a_b", 1.5, Shown("3 min", 180.0)), ("c|d", None, Shown("> −2", None)), ("e", 12.0, Shown("9 s", 9.0))),
    strong=frozenset({(0, 1)}),
)


def test_a_table_as_files() -> None:
    lines = [re.sub(" +", " ", line) for line in markdown(TABLE).splitlines()]
    assert lines[:3] + lines[4:] == [
        "A caption",
        "",
        r"| name | 50% & more | time\|s |",
        "| a_b | **1.5** | 3 min |",
        r"| c\|d | – | > −2 |",
        "| e | 12.0 | 9 s |",
    ]
    assert re.fullmatch(r"\|:-+\|-+:\|-+:\|", lines[3])
    assert latex(TABLE).splitlines() == [
        "% A caption",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"name & 50\% \& more & time|s \\",
        r"\midrule",
        r"a\_b & \textbf{1.5} & 3 min \\",
        r"c|d & -- & $>$ $-$2 \\",
        r"e & 12.0 & 9 s \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert comma_separated(TABLE).splitlines()[1] == "a_b,1.5,3 min"
    rows = ({"a": 1.25, "b": None}, {"a": 2.0, "c": "x, y"}, {"a": 3})
    assert comma_separated(Table("t", (), (), numbers=rows)) == 'a,b,c\n1.25,,\n2.0,,"x, y"\n3,,\n'


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "page.html"
    write(str(path), "né\n")
    assert path.read_bytes() == "né\n".encode()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=r"cannot write .*page\.html: No space left"):
        write(path, "new")
    with pytest.raises(UnicodeEncodeError):
        write(path, "\ud800")
    assert (path.read_text(), os.listdir(path.parent)) == ("né\n", ["page.html"])


# In a browser


@pytest.fixture
def opened(visit, tmp_path):  # type: ignore[no-untyped-def]
    """Opens blocks as a file:// page."""

    def show(*blocks: object):  # type: ignore[no-untyped-def]
        write(tmp_path / "page.html", page(*blocks))
        return visit(tmp_path / "page.html")

    return show


def find(root, selector):  # type: ignore[no-untyped-def]
    return root.find_elements("css selector", selector)


@pytest.mark.browser
def test_a_click_on_a_header_sorts(opened) -> None:  # type: ignore[no-untyped-def]
    rows = (("b", 2.5, Shown("10 s", 10)), ("a", None, Shown("9 ms", 0.009)), ("C", -1, Shown("1 h", 3600)))
    browser = opened(Table("T", ("Name", "Value", "Time"), rows))
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
@pytest.mark.parametrize("width", [420, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_and_figures_follow_the_scheme(opened, width, scheme) -> None:  # type: ignore[no-untyped-def]
    browser = opened(*everything())
    browser.execute_script("document.querySelector('details').open = true")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        inside = "e => e.scrollWidth <= e.clientWidth"
        assert browser.execute_script(f"return [...document.querySelectorAll('main div')].every({inside})")
        shown = "[...document.querySelectorAll('figure svg')].filter(e => getComputedStyle(e).display != 'none')"
        boxes = browser.execute_script(
            f"return {shown}.map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
        )
        assert len(boxes) == 2  # of panels beside each other and stacked one or the other
        assert boxes[0][1] > boxes[0][0] if width == 420 else boxes[0][1] < boxes[0][0]
        assert all(wide > 300 and high > 200 for wide, high in boxes)
        text = "getComputedStyle(document.querySelector('figure svg [id*=text_] [style]')).fill"
        ink = browser.execute_script(f"return [{text}, getComputedStyle(document.body).backgroundColor]")
        assert (sum(map(int, re.findall(r"\d+", ink[0]))) < 380) == (scheme == "light")
        assert (ink[1] == "rgb(255, 255, 255)") == (scheme == "light")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


HIDING = "a\u202eb\x1b[2J\u2028\r\n\0"


def test_letters_that_hide_are_spelt_out() -> None:
    table = Table(HIDING, ("x" + HIDING,), ((HIDING,),), numbers=({"a": HIDING},))
    texts = page(Text(HIDING), table), markdown(table), latex(table), comma_separated(table)
    for text in texts:
        assert text.replace("\n", "").isprintable()
        assert "u202eb" in text
    drawn = figure("a", HIDING * 50)
    assert len(drawn.svg) < 2 * len(figure("a", "x" * 200).svg)
    assert "\x1b" not in drawn.svg.decode()


@pytest.mark.parametrize(
    "evil", ["# a", "- a", "1. a", "> a", "<b>", "a*b*", "`a`", "[a](b)", "![a](b)", "a|b", "&lt;"]
)
def test_words_in_a_markdown_table_are_words(evil: str) -> None:
    text = markdown(Table(evil, (evil, "b"), ((evil, evil),), frozenset({(0, 1)})))
    parsed = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [token.children or [] for token in parsed if token.type == "inline"]
    assert [token.type for token in parsed][:3] == ["paragraph_open", "inline", "paragraph_close"]
    words = ["".join(child.content for child in children) for children in inline]
    assert words == [evil, evil, "b", evil, evil]
    assert {child.type for children in inline for child in children} == {"text", "strong_open", "strong_close"}


def test_very_long_names_end() -> None:
    assert len(page(Text("y" * 1_000_000), Table("", ("y" * 1_000_000,), (("z" * 1_000_000,),)))) < 100_000
