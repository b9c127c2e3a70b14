"""What notebooks show of a result: a fragment in the notebook's own colours, every word escaped."""

from collections.abc import Iterable, Mapping
from typing import Any

from feta.pages.run import five_numbers
from feta.pages.told import HEADER, layer_row
from feta.pages.words import counted, in_html

SHOWN = 200  # layers


def run_fragment(found: Mapping[str, Any], headline: str, notes: Iterable[str]) -> str:
    """A pruning run: the five numbers, what there is to say, and the layers behind a fold."""
    layers = rows_of(HEADER, map(layer_row, found["layers"][:SHOWN]))
    numbers = rows_of(("", "after", ""), five_numbers(found))
    return fragment(headline, numbers, notes, folded(counted(len(found["layers"]), "layer"), layers))


def fragment(headline: str, numbers: str, notes: Iterable[str], rest: str = "") -> str:
    """A line that stands out, a table of numbers, sentences, and more; the tables are markup that is ready."""
    said = "".join(f"<div>{in_html(note)}</div>" for note in notes)
    return f"<div><b>{in_html(headline)}</b>{numbers}{said}{rest}</div>"


def rows_of(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table as notebooks draw it."""
    head = "".join(f"<th>{in_html(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{in_html(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def folded(summary: str, inside: str) -> str:
    return f"<details><summary>{in_html(summary)}</summary>{inside}</details>"


def lines(text: str) -> str:
    """A few lines of text: the first stands out."""
    first, *rest = text.splitlines() or [""]
    return f"<div><b>{in_html(first)}</b>{''.join(f'<div>{in_html(line)}</div>' for line in rest)}</div>"
