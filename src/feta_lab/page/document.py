"""The page itself: blocks in, one self-contained HTML file out."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from feta.files.atomic import write_atomic
from feta_lab.page import charts, palette
from feta_lab.page.blocks import (
    BarChart,
    Block,
    Chart,
    Facts,
    Fold,
    LineChart,
    Panels,
    Section,
    Text,
    Verdict,
    Verdicts,
)
from feta_lab.page.cells import Table
from feta_lab.page.numbers import show
from feta_lab.page.palette import SHAPES, Look
from feta_lab.page.tables import DrawnTable, draw_bars, draw_table


@dataclass(frozen=True)
class View:
    """A block ready for the template: `kind` names its macro, `data` is what that macro writes."""

    kind: str
    data: Any


def render(
    title: str,
    subtitle: str,
    blocks: Iterable[Block],
    environment: Mapping[str, str],
    order: Sequence[str] = (),
    contents: bool = False,
) -> str:
    """The whole page; names in `order` take the first colours, whatever comes first in `blocks`.

    With `contents` a line of links to the sections stands below the title.
    """
    blocks = tuple(blocks)
    taken: set[str] = set()
    looks = palette.assign([*order, *palette.series_names(blocks)])
    views = [_view(block, looks, taken) for block in blocks]
    script = _asset("script.js")
    engine = jinja2.Environment(
        loader=jinja2.PackageLoader("feta_lab.page", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return engine.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        views=views,
        environment=environment,
        contents=[view.data[:2] for view in views if view.kind == "section"] if contents else [],
        light=palette.LIGHT,
        dark=palette.DARK,
        shapes=list(SHAPES.values()),
        shape_number={shape: number for number, shape in enumerate(SHAPES)},
        style=Markup(_asset("style.css")),
        script=Markup(script),
        # The browser runs this script and no other, whatever text found its way into the page.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def write(path: str | os.PathLike[str], html: str) -> None:
    """Write all or nothing: readers see the old page or the new one, never half of it."""
    write_atomic(Path(path), html.encode())


def _asset(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _anchor(heading: str, taken: set[str]) -> str:
    """An id of its own for a section: headings may be alike, ids may not."""
    name = "-".join(heading.lower().split())
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    free = next(one for one in names if one not in taken)
    taken.add(free)
    return free


def _view(block: Block, looks: Mapping[str, Look], taken: set[str]) -> View:
    match block:
        case LineChart() | BarChart():
            return View("charts", _charts((block,), looks, charts.WIDE))
        case Panels():
            return View("charts", _charts(block.charts, looks, charts.PANEL))
        case Table():
            return View("table", draw_table(block))
        case Facts():
            return View("facts", [(label, show(value)) for label, value in block.items])
        case Text():
            return View("text", block)
        case Section():
            if block.own_colours:
                looks = palette.assign(palette.series_names(block.blocks))
            anchor = _anchor(block.heading, taken)
            return View("section", (block.heading, anchor, [_view(inner, looks, taken) for inner in block.blocks]))
        case Fold():
            return View("fold", (block.summary, [_view(inner, looks, taken) for inner in block.blocks]))
        case Verdicts():
            return View("verdicts", [_verdict(item) for item in block.items])


def _verdict(item: Verdict) -> tuple[Verdict, DrawnTable | None]:
    return item, draw_table(item.table) if item.table else None


def _charts(members: Sequence[Chart], looks: Mapping[str, Look], frame: charts.Frame) -> dict[str, object]:
    """Charts under one legend and, where an x axis is logarithmic, one switch."""
    views = [
        View("line", charts.draw(chart, looks, frame))
        if isinstance(chart, LineChart)
        else View("bars", (chart, draw_bars(chart, looks)))
        for chart in members
    ]
    return {
        "views": views,
        "panels": frame is charts.PANEL,
        "legend": palette.legend(members, looks),
        "log": any(isinstance(chart, LineChart) and chart.log_x for chart in members),
    }
