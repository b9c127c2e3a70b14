"""Self-contained HTML pages from data: charts, tables, headline numbers, text.

    html = render("Pruning LeNet", "three seeds", [Facts(...), LineChart(...)], {"python": "3.11"})
    write("report/index.html", html)

A page is a pure function of its blocks: no network, no clock, the same input gives the same bytes.
"""

from feta.lab.page.blocks import (
    BarChart,
    Block,
    Chart,
    Facts,
    LineChart,
    Panels,
    Point,
    Section,
    Series,
    Table,
    Text,
)
from feta.lab.page.document import render, write

__all__ = [
    "BarChart",
    "Block",
    "Chart",
    "Facts",
    "LineChart",
    "Panels",
    "Point",
    "Section",
    "Series",
    "Table",
    "Text",
    "render",
    "write",
]
