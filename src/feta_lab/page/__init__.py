"""Self-contained HTML pages from data: figures, tables, headline numbers, text.

    blocks = [Facts((("accuracy", "97.2 %"),)), Figure("accuracy", (LineChart(...),))]
    publish(Path("site/report.html"), "Pruning LeNet", "three seeds", blocks, {"python": "3.11"})

A page is a function of its blocks alone: the same blocks give the same bytes.
"""
