"""Bar charts: inline SVG for the bars, the page's own text for the words, so that these are readable at any width."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from feta.pages.words import in_html


class Bar(NamedTuple):
    """A bar and the words beside it; `share` of the track in [0, 1], None: no bar."""

    share: float | None
    words: str
    kind: str = "one"


def bar(share: float | None, kind: str = "one") -> str:
    """One bar as SVG."""
    if share is None:
        return "<span></span>"
    wide = 100 * min(max(share, 0.0), 1.0)
    parts = '<rect class="track" width="100" height="1"/>'
    parts += f'<rect class="{kind}" width="{wide:.2f}" height="1"/>'
    return f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">{parts}</svg>'


def columns_of_bars(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[Bar]]]) -> str:
    """A line for each name with a bar in every column; heads: of the names and of the columns."""
    lines = [f"<div>{''.join(f'<span class=head>{in_html(head)}</span>' for head in heads)}</div>\n"]
    for name, bars in rows:
        cells = "".join(map(_cell, bars))
        lines.append(f'<div><span class="name">{_breaking(name)}</span>{cells}</div>\n')
    return _grid(f"minmax(7.5rem, 1.1fr) repeat({len(heads) - 1}, minmax(0, 1fr))", lines)


def paired_bars(rows: Iterable[tuple[str, Sequence[Bar]]]) -> str:
    """A line for each name with bars below each other, to be compared."""
    lines = []
    for name, bars in rows:
        pair = "".join(_cell(one, "cell long") for one in bars)
        lines.append(f'<div><span class="name">{_breaking(name)}</span><div class="pair">{pair}</div></div>\n')
    return _grid("minmax(6rem, 10rem) minmax(0, 1fr)", lines, "bars paired")


def _breaking(name: str) -> str:
    """A name that is cut after its dots where the line is too short: model.layers.0.| self_attn."""
    return in_html(name).replace(".", ".<wbr>")


def _cell(one: Bar, kind: str = "cell") -> str:
    return f'<span class="{kind}">{bar(one.share, one.kind)}<span>{in_html(one.words)}</span></span>'


def _grid(columns: str, lines: Sequence[str], kind: str = "bars") -> str:
    return f'<div class="{kind}" style="grid-template-columns: {columns}">\n{"".join(lines)}</div>\n'
