"""Fill in every table and sentence of the pages that comes from records.

    python docs/figures.py            # rewrites README.md and docs/*.md, and draws the pictures
    python docs/figures.py --check    # fails where a page says something else

In a page the text stands between `<!-- records: NAME -->` and `<!-- end -->`. NAME is one of TEXTS below: a function
of the records under results/ alone.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import exports  # noqa: E402
import gpu_speed  # noqa: E402
import methods_table  # noqa: E402
import outcome_picture  # noqa: E402
import outcome_table  # noqa: E402
import paper_tables  # noqa: E402
import patterns  # noqa: E402
import real_table  # noqa: E402
import recipes_table  # noqa: E402
import scale  # noqa: E402
import speed  # noqa: E402
import structured_table  # noqa: E402

import files as files_benchmark  # noqa: E402
from feta_lab.records import Record, latest, read  # noqa: E402

RESULTS, PICTURES = ROOT / "results", ROOT / "docs" / "pictures"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACE = re.compile(r"<!-- records: (\S+) -->(.*?)<!-- end -->", re.DOTALL)


def of(name: str) -> list[Record]:
    """The last record of each cell of a folder."""
    return list(latest(read(RESULTS / name / "records.jsonl")).values())


TEXTS: dict[str, Callable[[], str]] = {
    "outcome": lambda: outcome_table.table(of),
    "recipes": lambda: recipes_table.tables(of("recipes")),
    "recipes-said": lambda: recipes_table.sentence(of("recipes")),
    "real": lambda: real_table.tables(of("real")),
    "real-cpu-said": lambda: real_table.on_cpu(of("real-cpu"), of("real")),
    "methods": lambda: methods_table.markdown(of("methods")),
    "methods-said": lambda: methods_table.sentence(of("methods")),
    "agree-said": lambda: methods_table.agreement(of("methods"), of("fig2")),
    "allocation": lambda: methods_table.allocations(of("allocation")),
    "paper": lambda: paper_tables.paper(of("fig2")),
    "after": lambda: paper_tables.after(of("fig2"), of("table1")),
    "claims-said": lambda: paper_tables.claims(RESULTS),
    "patterns": lambda: patterns.tables(of("patterns")),
    "reordered": lambda: patterns.reordered(of("patterns-reordered")),
    "structured": lambda: structured_table.tables(of("structured")),
    "structured-said": lambda: structured_table.gains(of("structured")),
    "files": lambda: files_benchmark.tables(of("files")),
    "speed": lambda: speed.table(of("speed")),
    "gpu-speed": lambda: gpu_speed.table(of("gpu-speed")),
    "gpu-speed-said": lambda: gpu_speed.sentence(of("gpu-speed")),
    "exports": lambda: exports.table(of("exports")),
    "scale": lambda: scale.table(of("scale")),
}


def filled(page: str) -> str:
    """The page with every text in its place: between empty lines, or, after other words of a line, within it."""

    def put(place: re.Match[str]) -> str:
        if place[1] not in TEXTS:
            sys.exit(f"records must be one of {', '.join(TEXTS)}, got {place[1]}")
        text = TEXTS[place[1]]()
        if (
            page[: place.start()].rpartition("\n")[2].strip() == ""
        ):  # Markdown does not read on in a line that begins so
            text = f"\n\n{text}\n\n"
        return f"<!-- records: {place[1]} -->{text}<!-- end -->"

    return PLACE.sub(put, page)


def draw() -> None:
    outcome_picture.picture(of("recipes"), of("real")).save(PICTURES)
    recipes_table.picture(of("recipes"), "lost", "recipes").save(PICTURES)
    methods_table.picture(of("methods"), "accuracy").save(PICTURES)


def main(words: list[str]) -> int:
    wrong = []
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if after != before and "--check" in words:
            wrong.append(path.name)
        elif after != before:
            path.write_text(after, encoding="utf-8")
    if "--check" not in words:
        draw()
    if wrong:
        sys.exit(f"{', '.join(wrong)} must say what the records say; run python docs/figures.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
