"""Self-contained HTML pages from data: figures, tables, headline numbers, text.

    blocks = [Facts((("accuracy", "97.2 %"),)), Figure("accuracy", (LineChart(...),))]
    write(Path("site/report.html"), render("Pruning LeNet", "three seeds", blocks, {"python": "3.11"}))
    save_figures(blocks, Path("site/figures"))

A page is a function of its blocks alone: the same blocks give the same bytes.
"""

from feta_lab.page.blocks import Block, Facts, Fold, Section, Text, Verdict, VerdictName, Verdicts
from feta_lab.page.cells import Cell, Shown, Table
from feta_lab.page.charts import LineChart, Point
from feta_lab.page.document import blocks_of, publish, render, save_figures, write
from feta_lab.page.figure import Figure

__all__ = [
    "Block",
    "Cell",
    "Facts",
    "Figure",
    "Fold",
    "LineChart",
    "Point",
    "Section",
    "Shown",
    "Table",
    "Text",
    "Verdict",
    "VerdictName",
    "Verdicts",
    "blocks_of",
    "publish",
    "render",
    "save_figures",
    "write",
]
