"""One way to write a page: parts that escape every word, and a document that loads nothing and runs nothing."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from feta.pages.words import in_html

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, subtitle: str, *parts: str, foot: Mapping[str, str] | None = None) -> str:
    """A whole page; `parts` are made by the functions below, `foot` says how it was made."""
    made = "".join(_defined(name, value) for name, value in (foot or {}).items())
    foot_of = f"<footer><h2>How this page was made</h2><dl>{made}</dl></footer>\n" if foot else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{in_html(title)}</title>
<style>
{STYLE}</style>
</head>
<body>
<header>
<h1>{in_html(title)}</h1>
<p class="subtitle">{in_html(subtitle)}</p>
</header>
<main>
{"".join(parts)}</main>
{foot_of}</body>
</html>
"""


def section(heading: str, *parts: str) -> str:
    return f"<section>\n<h2>{in_html(heading)}</h2>\n{''.join(parts)}</section>\n"


def fold(summary: str, *parts: str) -> str:
    """Parts behind one line that opens them."""
    return f'<details class="fold">\n<summary>{in_html(summary)}</summary>\n{"".join(parts)}</details>\n'


def text(*paragraphs: str, note: bool = False) -> str:
    kind = "text note" if note else "text"
    return f'<div class="{kind}">{"".join(f"<p>{in_html(words)}</p>" for words in paragraphs)}</div>\n'


def listed(items: Iterable[str]) -> str:
    """Sentences, with what stands between backticks as code."""
    return f'<ul class="list">{"".join(f"<li>{_marked(item)}</li>" for item in items)}</ul>\n'


def _marked(item: str) -> str:
    parts = map(in_html, item.split("`"))
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def facts(items: Iterable[tuple[str, str, str]]) -> str:
    """Headline numbers: (label, value, what it was before or how it is meant)."""
    return f'<dl class="facts">{"".join(_defined(label, value, small) for label, value, small in items)}</dl>\n'


def _defined(name: str, value: str, small: str = "") -> str:
    below = f" <small>{in_html(small)}</small>" if small else ""
    return f"<div><dt>{in_html(name)}{below}</dt><dd>{in_html(value)}</dd></div>"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[str] = (), whole: Sequence[str] = ()
) -> str:
    """Rows under their heads; columns of numbers stand right, the first one and those in `words` left.

    whole: columns of words too, that stay on one line, beside a first column of layers' names.
    """
    kinds = dict.fromkeys(words, "left") | dict.fromkeys(whole, "left whole")
    first = "left name" if whole else "left"
    sides = [first if place == 0 else kinds.get(name, "right") for place, name in enumerate(columns)]
    labels = [in_html(name) for name in columns]
    head = "".join(f'<th scope="col" class="{side}">{name}</th>' for side, name in zip(sides, labels, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{side}" data-label="{label}">{in_html(str(cell))}</td>'
            for side, label, cell in zip(sides, labels, row, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'
