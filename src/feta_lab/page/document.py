"""What is written: blocks as one self-contained HTML file; tables as CSV, Markdown and LaTeX, which pandas writes."""

import base64
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from feta.errors import printable
from feta.files.atomic import write_atomic
from feta.files.card import LONGEST, in_markdown
from feta.pages.document import STYLE
from feta_lab.page.blocks import Block, Fold, Section, Table, sort_key
from feta_lab.page.figure import DARK, LIGHT, TEMPLATES, Figure

# Characters that LaTeX's usual fonts do not have; pandas escapes its commands.
IN_TEX = ("--", "$-$", r"$\times$", "$^2$", r"$\pm$", "$<$", "$>$", r"$\rho$")
TEX = str.maketrans(dict(zip("–−×²±<>ρ", IN_TEX, strict=True)))


def render(
    title: str, subtitle: str, blocks: Iterable[Block], environment: Mapping[str, str], contents: bool = False
) -> str:
    """Write blocks as one HTML page that loads nothing from elsewhere.

    title, subtitle: stand at the top.
    blocks: what the page shows, in order.
    environment: versions and machine, for the foot of the page.
    contents: whether links to the sections stand below the title.

    All words are escaped, and letters that hide or turn the rest around are spelt out.
    Example: render("Pruning", "", [Text("Hello.")], {}).
    """
    strict, files = jinja2.StrictUndefined, jinja2.FileSystemLoader(TEMPLATES)
    engine = jinja2.Environment(
        loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=strict, finalize=_plain
    )
    numbers = itertools.count(1)
    engine.filters |= {
        "kind": lambda block: type(block).__name__,
        "anchor": lambda heading: "-".join(heading.lower().split()),
        "sort_key": sort_key,
        "table": lambda finding: Table("", finding.columns, finding.rows),
        "svg": lambda figure: figure.inline(f"f{next(numbers)}-"),
    }
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "sort.js"))
    style = f"{STYLE}\n{style}"
    # The browser runs this script and no other, whatever text found its way into the page.
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown = {"title": title, "subtitle": subtitle, "blocks": list(blocks), "contents": contents}
    looks = {"light": LIGHT, "dark": DARK, "style": Markup(style), "script": Markup(script)}
    template = engine.get_template("page.html.j2")
    return template.render(**shown, **looks, environment=environment, script_hash=script_hash)


def write(path: str | os.PathLike[str], html: str) -> None:
    """Write a page; readers see the old page or the new one, never half of it. Raises FileError."""
    write_atomic(Path(path), html.encode())


def publish(path: Path, title: str, subtitle: str, blocks: Sequence[Block], environment: Mapping[str, str]) -> Path:
    """Write a page, and its figures beside it; returns the page's path. The arguments are those of `render`.

    Example: publish(Path("site/report.html"), "Pruning", "", [Facts((("accuracy", "97.2 %"),))], {}).
    """
    write(path, render(title, subtitle, blocks, environment))
    save_figures(blocks, path.parent)
    return path


def blocks_of(blocks: Iterable[Block]) -> Iterator[Block]:
    """All blocks of a page, also those inside sections and folds."""
    for block in blocks:
        yield block
        if isinstance(block, Section | Fold):
            yield from blocks_of(block.blocks)


def save_figures(blocks: Iterable[Block], folder: Path) -> list[Path]:
    """Write every figure of a page as PNG and SVG; returns the paths."""
    figures = [block for block in blocks_of(blocks) if isinstance(block, Figure)]
    return [path for figure in figures for path in figure.save(folder)]


def write_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write each table as NAME.md, NAME.csv and NAME.tex; returns the paths. Raises FileError."""
    paths = []
    for table in tables:
        texts = {"md": markdown(table), "csv": comma_separated(table), "tex": latex(table)}
        for suffix, text in texts.items():
            paths.append(folder / f"{table.name}.{suffix}")
            write_atomic(paths[-1], text.encode())
    return paths


def comma_separated(table: Table) -> str:
    """The table's numbers in full, or else the words of its cells; an empty field is a missing value."""
    rows = [{name: _plain(value) for name, value in row.items()} for row in table.numbers]
    frame = pd.DataFrame(rows, dtype=object) if rows else _frame(table)
    return str(frame.to_csv(index=False))


def markdown(table: Table) -> str:
    """The table in Markdown, its caption above it."""
    frame = _frame(table).map(in_markdown)  # pandas leaves all of it alone
    frame.columns = frame.columns.map(in_markdown)
    for row, column in table.strong:
        frame.iat[row, column] = f"**{frame.iat[row, column]}**"
    align = ["right" if numeric else "left" for numeric in table.numeric]
    text = frame.to_markdown(index=False, disable_numparse=True, colalign=align)
    # At its beginning a sign, or a number with a dot, would make a heading or a list of it.
    caption = re.sub(r"^(\d*)(?=[#>+=.)-])", r"\1\\", in_markdown(table.caption).strip())
    return f"{caption}\n\n{text}\n" if caption else f"{text}\n"


def latex(table: Table) -> str:
    """A tabular with the rules of booktabs, its caption as a comment above it."""
    frame = _frame(table)
    bold = pd.DataFrame("", frame.index, frame.columns)
    for row, column in table.strong:
        bold.iat[row, column] = "textbf:--rwrap"
    style = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    text = style.apply(lambda _: bold, axis=None).to_latex(hrules=True, column_format=columns)
    caption = f"% {_plain(table.caption)}\n" if table.caption else ""
    return caption + str(text).translate(TEX)


def _frame(table: Table) -> pd.DataFrame:
    """The words of the cells."""
    return pd.DataFrame(table.texts, columns=[_plain(name) for name in table.columns], dtype=object).map(_plain)


def _plain(value: Any) -> Any:
    """Words on one line, not without end, and without letters that hide or turn the rest around; else the value."""
    if type(value) is not str:  # markup of ours is no longer mere text
        return value
    return printable(value if len(value) <= LONGEST else value[:LONGEST] + "…")
