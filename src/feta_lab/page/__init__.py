"""Self-contained HTML pages from data: charts, tables, headline numbers, text.

    html = render("Pruning LeNet", "three seeds", [Facts(...), LineChart(...)], {"python": "3.11"})
    write("report/index.html", html)

A page is a pure function of its blocks: no network, no clock, the same input gives the same bytes.
"""

from feta_lab.page.blocks import (
    BarChart,
    Block,
    Chart,
    Facts,
    Fold,
    LineChart,
    Panels,
    Point,
    Section,
    Series,
    Text,
    Verdict,
    VerdictName,
    Verdicts,
)
from feta_lab.page.cells import Align, Cell, Shown, Table
from feta_lab.page.document import render, write

__all__ = [
    "Align",
    "BarChart",
    "Block",
    "Cell",
    "Chart",
    "Facts",
    "Fold",
    "LineChart",
    "Panels",
    "Point",
    "Section",
    "Series",
    "Shown",
    "Table",
    "Text",
    "Verdict",
    "VerdictName",
    "Verdicts",
    "render",
    "write",
]
