"""Hostile words in every page and table that is written: names of networks, layers, methods, data sets and machines.

A page with such names must have the very elements and attributes of one with plain names, a Markdown table its cells
and nothing but text in them, LaTeX and CSV their columns; nothing written may hold letters that hide or turn the rest
around, or have no end, and the words must be there to read.
"""

import csv
import io
import random
import re
import unicodedata
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from markdown_it import MarkdownIt

from feta.errors import printable
from soak._written import everything
from soak.tally import Tally

COUNT = 3_000
SLOW = 50  # one in so many is a page with figures
MOST = 3_000_000  # letters of a page
PIECES = (
    "<script>alert(1)</script>", "</td></tr>", "</style>", "<img src=x onerror=alert(1)>", "<!--", "-->", "]]>", '"',
    "'", '" onload="x', "&", "&lt;", "&#x202e;", "&amp", "|", "\\|", "\\", "`", "``", "```\n", "*", "**", "_", "__",
    "~~", "[a](b)", "![x](javascript:y)", "<http://x.y>", "$", "$$", "$\\frac$", "%", "#", "{", "}", "{{ 7*7 }}",
    "{% raw %}", "^", "~", "\n", "\r", "\n\n", "\t", "\0", "\x1b[2J", "\x1b]0;x\x07", "\x9b", "\x7f", "\u202e",
    "\u2066", "\u200f", "\u200b", "\ufeff", "\u2028", "\u00ad", "\U000e0041", "=1+1", "@x", "+1", "-1", ",", ";", "é",
    "漢", "🧀", " ", "a", "layer1.0.conv", "<!-- end of pruning -->", "<!-- pruning, written by feta -->",
    "| --- |", "\\end{tabular}", "\\input{x}", "\n% ", "x" * 99,
)  # fmt: skip
IN_SVG = {"svg", "g", "path", "defs", "use", "clippath", "rect", "text", "style", "tspan"}


def run(count: int, seed: int) -> Tally:
    warnings.filterwarnings("ignore", "Glyph .* missing")  # of matplotlib: there is no font for everything
    tally, plain = Tally("pages"), everything(lambda place: f"name{place}")
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        words = [_words(draw) for _ in range(9)]
        slow = number % SLOW == SLOW - 1
        for kind, problem in _problems(words, plain, slow):
            tally.wrong.append(f"{kind} (number {number} of seed {seed}): {problem}; {ascii(words)[:300]}")
        tally.tried += 1
    return tally


def _words(draw: random.Random) -> str:
    while not (text := "".join(draw.choice(PIECES) for _ in range(draw.choice((1, 1, 2, 3, 8))))).strip():
        pass
    return text * 20_000 if draw.random() < 0.01 else text


def _problems(words: list[str], plain: dict[str, Any], slow: bool) -> Iterator[tuple[str, str]]:
    try:
        found = everything(lambda place: words[place], slow)
    except Exception as error:
        yield "raised", f"{type(error).__name__}: {str(error)[:200]!a}"
        return
    for kind, (text, shown) in found.items():
        for check in (_letters, CHECKS[kind.rpartition(".")[2]]):
            if problem := check(text, plain[kind][0]):
                yield kind, problem
        visible = _visible(text, kind)
        for place in shown:
            if (wanted := _squeezed(printable(words[place])[:40])) not in visible:
                yield kind, f"{wanted!a} cannot be read"


def _letters(text: str, plain: str) -> str:
    odd = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")} - {"\n"}
    return f"letters {sorted(odd)!a}" if odd else f"{len(text):,} letters" if len(text) > MOST else ""


class Outline(HTMLParser):
    """The elements of a page outside of figures, with the names of their attributes, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.words: list[str] = []
        self.wrong: list[str] = []
        self.drawing = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.drawing |= tag == "svg"
        if not self.drawing and tag != "wbr":  # at which a name with dots may break
            self.elements.append(f"{tag} {' '.join(sorted(name for name, _ in attrs))}")
        for name, value in attrs:
            if name.startswith("on") or (name in ("href", "src") and not str(value).startswith(("#", "data:,"))):
                self.wrong.append(f"{tag} {name}={value}")
        if self.drawing and tag not in IN_SVG:
            self.wrong.append(f"{tag} in a figure")

    def handle_endtag(self, tag: str) -> None:
        self.drawing &= tag != "svg"

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        if not self.drawing:
            self.wrong.append(f"comment {data}")


def _html(text: str, plain: str) -> str:
    one, other = Outline(text), Outline(plain)
    if one.wrong:
        return ascii(one.wrong[0])
    if problem := _letters("".join(one.words), ""):
        return problem
    if one.elements != other.elements:
        pairs = zip(one.elements, other.elements, strict=False)
        return f"other elements: {next((a for a, b in pairs if a != b), 'more or fewer')!a}"
    return ""


def _svg(text: str, plain: str) -> str:
    body = text[text.index("<svg") :]
    return ascii(wrong[0]) if (wrong := [w for w in Outline(body).wrong if "comment" not in w]) else ""


def _md(text: str, plain: str) -> str:
    """The same cells, and in them nothing but text, code and what stands out."""
    one, other = (MARKDOWN.parse(given) for given in (text, plain))
    if [token.type for token in one] != [token.type for token in other]:
        return f"other blocks: {ascii([token.type for token in one])[:200]}"
    for token, like in zip(one, other, strict=True):
        kinds = {child.type for child in token.children or ()} - {"text", "softbreak"}
        if not kinds <= {child.type for child in like.children or ()} | {"code_inline"}:
            return f"{sorted(kinds)} in {token.content!a}"
    return ""


def _csv(text: str, plain: str) -> str:
    one, other = (list(map(len, csv.reader(io.StringIO(given)))) for given in (text, plain))
    return "" if one == other else f"{one} fields, not {other}"


def _tex(text: str, plain: str) -> str:
    shapes = []
    for given in (text, plain):
        bare = re.sub(r"\\[&%$#_{}]", "", given).replace(r"\textasciitilde ", "").replace(r"\textasciicircum ", "")
        lines = bare.split("\n")[1:]  # the first is the caption, a comment
        shapes.append([(line.count("&"), line.count("\\\\")) for line in lines])
        if not bare.startswith("%") or any("%" in line or "#" in line for line in lines):
            return "a comment or a parameter"
    return "" if shapes[0] == shapes[1] else "other lines or columns"


def _txt(text: str, plain: str) -> str:
    return "" if text.count("\n") == plain.count("\n") else "other lines"


def _visible(text: str, kind: str) -> str:
    return _squeezed("".join(Outline(text).words)) if kind.endswith(".html") else ""


def _squeezed(text: str) -> str:
    return " ".join(text.split())


MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
CHECKS = {"html": _html, "svg": _svg, "md": _md, "csv": _csv, "tex": _tex, "txt": _txt}
