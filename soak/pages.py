"""Hostile words in every page and table that is written: names of networks, layers, methods, data sets and machines.

A page with such names must have the very elements and attributes of one with plain names, a Markdown table its cells
and nothing but text in them, LaTeX and CSV their columns; nothing written may hold letters that hide or turn the rest
around, or have no end, and the words must be there to read.
"""

import csv
import io
import random
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from feta.cli.speed_page import speed_page
from feta.errors import printable
from feta.files.card import with_pruning
from feta.report import LayerReport, PruneReport
from feta_lab.demo import write_demo
from feta_lab.page.blocks import Facts, Fold, Section, Table, Text
from feta_lab.page.certificate import certificate_page
from feta_lab.page.document import comma_separated, latex, markdown, render
from feta_lab.page.report import build
from feta_lab.page.sections.bench import write_bench
from feta_lab.records import append
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
Names = Callable[[int], str]  # the words at each place of a page


def run(count: int, seed: int) -> Tally:
    tally, plain = Tally("pages"), _all(lambda place: f"name{place}")
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
        found = _all(lambda place: words[place], slow)
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


def _all(names: Names, slow: bool = True) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Everything that is written, by its name, with the places of the words that must be read in it."""
    found = {
        "speed.html": (speed_page(_speed(names)), (0, 1, 2, 3)),
        "blocks.html": (
            render(names(0), names(1), _blocks(names), {names(2): names(3)}, contents=True),
            tuple(range(9)),
        ),
        "card.md": (_card(names), ()),
        "report.txt": (repr(_report(names)), ()),
    }
    table = _table(names)
    found |= {
        "table.md": (markdown(table), ()),
        "table.csv": (comma_separated(table), ()),
        "table.tex": (latex(table), ()),
    }
    if slow:
        found["certificate.html"] = (certificate_page(_certificate(names)), (0, 1, 2))
        with tempfile.TemporaryDirectory() as folder:
            found |= _written(names, Path(folder))
    return found


def _written(names: Names, folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The pages of records, with all files beside them."""
    cells = list(_cells(names))
    for cell in cells:
        append(folder / "results" / "bench" / "records.jsonl", cell)
    build(folder / "results", folder / "report")
    write_bench(folder / "bench", cells)
    write_demo(folder / "demo" / "report.html", _demo(names))
    written = [path for path in folder.rglob("*") if path.suffix in (".html", ".md", ".csv", ".tex", ".svg")]
    return {str(path.relative_to(folder)): (path.read_text(encoding="utf-8"), ()) for path in written}


def _speed(names: Names) -> dict[str, Any]:
    times = {"dense_ms": 2.0, "sparse_ms": 1.0, "threads": 1}
    layer = {"name": names(1), "threads": 1, "sparsity": 0.9, "kind": names(2), "dense_bytes": 9, "bytes": 5}
    layer |= {"dense_ms": {"1": 2.0}, "sparse_ms": {"1": 1.0}}
    about = {
        "network": names(0),
        "device": names(4),
        "file_bytes": 10,
        "notes": [names(3)],
        "batches": [times | {"batch": 1}],
    }
    environment = {"cpu": names(5), "torch": names(6)}
    return about | {"layers": [layer], "memory": {"dense_bytes": 9, "sparse_bytes": 5}, "environment": environment}


def _card(names: Names) -> str:
    pruning = {"method": names(0), "options": {names(1): names(2)}, "layers": []}
    once = with_pruning("# Mine\n\nWords.\n", {names(3): 0.5, "b.weight": 0.25}, {"method": names(0)})
    return with_pruning(once + "\nMore.\n", {names(3): 0.5, names(4) + "2": 0.75}, pruning)


def _report(names: Names) -> PruneReport:
    layers = tuple(LayerReport(f"{names(place)}{place}", (3, 4), 6, 0.5, 0.1, 0.2) for place in (0, 1))
    return PruneReport("feta", 0.5, 0.5, 1.0, "cpu", 0, {}, layers)


def _table(names: Names) -> Table:
    rows = ((names(0), names(1), 1.5), (names(2), names(3), 2.5))
    return Table(names(4), (names(5) + "5", names(6) + "6", names(7) + "7"), rows, frozenset({(0, 1)}), name="t")


def _blocks(names: Names) -> list[Any]:
    fold = Fold(names(7), (Facts(((names(8), names(0)),)),))
    return [Section(names(4), (Text(names(5)), _table(names), fold)), Text(names(6))]


def _certificate(names: Names) -> dict[str, Any]:
    form = {
        "radius": [0.1, 0.2],
        "samples": 2,
        "certified_any": 2,
        "certified_but_changed": 0,
        "median_grey_levels": 3.0,
    }
    form |= {
        "changed_beyond": [{"times": 2.0, "samples": 1}],
        "certified_any_in_exact_arithmetic": 2,
        "vacuous": False,
        "one_grey_level": 1,
    }
    form |= {"certified": [{"radius": 0.1, "grey_levels": 3.0, "samples": 2, "share": 1.0}], "median_radius": 0.15}
    counts = {"samples": 2, "agree": 2, "only_dense_right": 0, "only_pruned_right": 0, "accuracy_lost": 0.0}
    limits = {"confidence": 0.99, "agreement_lower_bound": 0.9, "accuracy_lost_upper_bound": 0.01}
    about = {"network": names(0), "data": names(1), "pruning": {"method": names(2), "sparsity": 0.9}, "norm": "l2"}
    about |= {"environment": {names(3): names(4)}, "grey_levels_per_unit": 30.0, "attack": None}
    return {**about, **counts, **limits, "forms": {"local": form}}


def _cells(names: Names) -> Iterator[dict[str, Any]]:
    for place in (0, 1):
        cell = {
            "net": names(2) + "2",
            "method": f"{names(place)}{place}",
            "seed": 0,
            "sparsity": 0.9,
            "compensate": False,
        }
        cell["data"] = names(3)
        ran = {"accuracy": 90.0 + place, "dense_accuracy": 98.0, "seconds": 2.0, "relative_error": [0.1]}
        ran |= {"floor_seconds": 1.0, "timed": True, "device": names(4)}
        yield {"kind": "bench", "key": cell, **cell, **ran, "environment": {"processor": names(5), "torch": names(6)}}


def _demo(names: Names) -> list[dict[str, Any]]:
    layer = {"name": names(2), "shape": [3, 4], "nonzeros": 6, "sparsity": 0.5, "relative_error": 0.1}
    scores = {"dense": {"test": 98.0}, "pruned": {"test": 97.0}}
    metrics = {"accuracy": scores, "seconds": 1.0, "sparsity": 0.9, "layers": [layer]}
    metrics["file_bytes"] = {"dense": 9000, "pruned": 3000}
    config = {"network": names(0), "data": names(1), "sparsity": 0.9}
    methods = ("feta", f"{names(3)}3")
    return [
        {"config": config | {"method": m}, "metrics": metrics, "environment": {"torch": names(4)}} for m in methods
    ]


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
        if not self.drawing:
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
