"""The tables and the picture of the recipes from benchmark records.

    python benchmarks/recipes_table.py results/recipes/records.jsonl                     # prints the tables
    python benchmarks/recipes_table.py results/recipes/records.jsonl --validation        # the half to decide by
    python benchmarks/recipes_table.py results/recipes/records.jsonl --write README.md   # puts them between the marks
    python benchmarks/recipes_table.py results/recipes/records.jsonl --check README.md   # fails when it holds others
    python benchmarks/recipes_table.py results/recipes/records.jsonl --picture docs/pictures/recipes

All recipes of a column are compared over the same networks and seeds (recipes_means.py). Columns may differ in them:
the line `cells` counts them, and the sentence below a table names them. A page with the marks of BRIEF gets the
recipes of the picture alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from real_table import replaced
from recipes import EFFORTS, NETS, RECIPES
from recipes_means import Column, Member, Place, columns, member

from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.records import Record, groups, latest, read

MARKS = "<!-- recipes: benchmarks/recipes_table.py -->", "<!-- end of recipes -->"
BRIEF = "<!-- recipes in brief: benchmarks/recipes_table.py -->", MARKS[1]
DENSE = ("dense-mnist", "dense-fashion", "dense-mnist-wide")
GOALS: dict[Place, float] = {  # points that these may lose
    (200, 0.95): 2.2, (1000, 0.95): 1.1, (5000, 0.95): 0.8, ("all", 0.95): 0.4,
    (200, 0.98): 4.5, (1000, 0.98): 2.8, (5000, 0.98): 2.3, ("all", 0.98): 0.9,
}  # fmt: skip
PICTURED = ("best", "default", "fast", "feta-sensitivity-refined", "alps-sensitivity-refined", "threshold-refined")


def tables(records: Sequence[Record], score: str = "lost") -> str:
    half = "validation" if score == "validation_lost" else "test"
    intro = f"Points lost on the {half} half, mean of networks; the best of a column is bold."
    texts = [f"{intro} Measured on {where(records)}.", table(records, score)]
    if dense := [one for one in records if one["net"] in DENSE and one["recipe"] in EFFORTS]:
        texts += ["The small dense networks beside the goals; what reaches them is bold.", table(dense, score, GOALS)]
    return "\n\n".join(texts)


def brief(records: Sequence[Record], score: str) -> str:
    mine = [one for one in records if one["recipe"] in PICTURED]
    lines = [line for line in table(mine, score).splitlines() if not line.startswith("| cells")]
    return "\n".join(lines) + f" Measured on {where(mine)}."


def table(records: Sequence[Record], score: str, goals: Mapping[Place, float] | None = None) -> str:
    """A line per recipe; bold is the best of a column or, where there are goals, what reaches them."""
    found = columns(records, score)
    rows, shares = list(dict.fromkeys(rows for rows, _ in found)), sorted({share for _, share in found})
    head = [f"at {' / '.join(f'{100 * share:g}' for share in shares)} %", *map(said, rows)]
    head.append(f"median seconds at {100 * shares[-1]:g} %")
    lines = [head, ["---"] * len(head)]

    def line(name: str, texts: Mapping[Place, str], last: str = "") -> None:
        cells = (" / ".join(texts.get((count, share), "–") for share in shares) for count in rows)
        lines.append([name, *cells, last])

    if goals is not None:
        line("goal", {place: f"{goal:g}" for place, goal in goals.items()})
    for recipe in recipes_of(records):
        texts = {p: lost(one, recipe, limit(one) if goals is None else goals.get(p)) for p, one in found.items()}
        times = {p: short(one.seconds[recipe]) for p, one in found.items() if recipe in one.seconds}
        line(called(recipe), texts, " / ".join(times.get((count, shares[-1]), "–") for count in rows))
    line("cells", {place: counted(len(one.members), one.begun) for place, one in found.items()})
    if not any(one.seconds for one in found.values()):  # all cells ran beside others
        lines = [line[:-1] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{membership(found)}"


def lost(column: Column, recipe: str, at_most: float | None) -> str:
    if recipe not in column.means:
        return "failed" if recipe in column.failed else "–"
    value = round(column.means[recipe], 2)
    return f"**{value:.2f}**" if at_most is not None and value <= at_most else f"{value:.2f}"


def limit(column: Column) -> float | None:
    """What the best lost; of recipes that print the same, all are the best."""
    return min((round(value, 2) for value in column.means.values()), default=None)


def membership(found: Mapping[Place, Column]) -> str:
    """Which networks and seeds the means are over: one sentence where all columns have the same."""
    sets: dict[frozenset[Member], list[str]] = {}
    for (rows, share), one in found.items():
        sets.setdefault(one.members, []).append(f"{said(rows)} at {100 * share:g} %")
    usual = max(sets, key=lambda members: len(sets[members]))
    if len(sets) == 1:
        return f"Every mean is over {named(usual)}."
    texts = [f"{', '.join(places)}: {named(members)}" for members, places in sets.items() if members != usual]
    return f"The columns are not over the same networks. {'. '.join(texts)}. All others: {named(usual)}."


def named(members: Iterable[Member]) -> str:
    nets: dict[str, list[int]] = {}
    for net, seed in sorted(members):
        nets.setdefault(net, []).append(seed)
    same: dict[tuple[int, ...], list[str]] = {}
    for net, seeds in nets.items():
        same.setdefault(tuple(seeds), []).append(net)
    texts = [
        f"{'all nine networks' if set(mine) == set(NETS) else ', '.join(mine)} "
        f"({'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))})"
        for seeds, mine in same.items()
    ]
    return "; ".join(texts) or "none that every recipe finished"


def recipes_of(records: Iterable[Record]) -> list[str]:
    seen = dict.fromkeys(one["recipe"] for one in records)
    return [recipe for recipe in dict.fromkeys([*RECIPES, *seen]) if recipe in seen]


def where(records: Iterable[Record]) -> str:
    about = [one["environment"] | {"device": one["device"]} for one in records]
    names = {
        f"{one['processor']}, threads: {one['threads']}" if one["device"] == "cpu" else one["gpu"] for one in about
    }
    return " or ".join(sorted(names))


def said(rows: int | str) -> str:
    return f"{rows:,} rows" if isinstance(rows, int) else f"{rows} rows"


def called(recipe: str) -> str:
    return f'`effort="{recipe}"`' if recipe in EFFORTS else recipe.replace("-", ", ")


def short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def counted(count: int, begun: int) -> str:
    return str(count) if count == begun else f"{count} of {begun}"


def picture(records: Sequence[Record], score: str, name: str) -> Figure:
    """Points lost against rows, a panel per sparsity, over what every recipe finished at every point."""
    mine = [one for one in records if one["recipe"] in PICTURED]
    sets = [one.members for one in columns(mine, score).values() if one.members]
    common = frozenset.intersection(*sets) if sets else frozenset()
    if not common:
        sys.exit("a picture needs networks that all its recipes have finished at every number of rows and sparsity")
    mine = [one for one in mine if member(one) in common and score in one]
    found, shown = columns(mine, score), [recipe for recipe in PICTURED if recipe in recipes_of(mine)]
    at = {rows: statistics.median(one["row_count"] for one in same) for (rows,), same in groups(mine, "rows").items()}
    ticks = {place: said(rows).removesuffix(" rows") for rows, place in at.items()}
    networks, charts = len({net for net, _ in common}), []
    for share in sorted({share for _, share in found}):
        panel = {at[rows]: one.means for (rows, other), one in found.items() if other == share}
        lines = {called(one).strip("`"): [Point(x, means.get(one)) for x, means in panel.items()] for one in shown}
        title = f"{100 * share:g} % zeros, mean of {networks} network{'s' if networks > 1 else ''}"
        axes = {"log_x": True, "ticks": ticks, "from_zero": True}
        charts.append(LineChart(title, "unlabelled rows", "points lost", lines, **axes))
    return Figure(name, tuple(charts))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--picture", type=Path, help="without its ending: an SVG and a PNG are written")
    parser.add_argument("--recipes", help="only these, with commas")
    parser.add_argument("--device", help="needed where the records are of several")
    parser.add_argument("--validation", action="store_true", help="the half to decide by; the test half is reported")
    given = parser.parse_args(words)
    records = [one for one in latest(read(given.records)).values() if one["kind"] == "recipes"]
    records = [one for one in records if given.device in (None, one["device"])]
    records = [one for one in records if given.recipes is None or one["recipe"] in given.recipes.split(",")]
    devices = {one["device"] for one in records}
    if len(devices) != 1:
        sys.exit(f"records must be of one device, got {', '.join(sorted(devices)) or 'none'}; see --device")
    score = "validation_lost" if given.validation else "lost"
    text = tables(records, score)
    for page in filter(None, (given.write, given.check)):
        old = page.read_text(encoding="utf-8")
        new = replaced(old, brief(records, score), BRIEF) if BRIEF[0] in old else replaced(old, text, MARKS)
        if page == given.write:
            page.write_text(new, encoding="utf-8")
        elif new != old:
            sys.exit(f"{page} must hold the tables of {given.records}; run this with --write")
    if given.picture is not None:
        picture(records, score, given.picture.name).save(given.picture.parent)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
