"""The tables and the picture of the recipes from benchmark records; see docs/figures.py.

All recipes of a column are compared over the same networks and seeds (recipes_means.py). Columns may differ in them:
the line `cells` counts them, and the sentence below a table names them.
"""

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence

from origin import origin
from recipes import EFFORTS, NETS, RECIPES
from recipes_means import Column, Member, Place, columns, member

from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.records import Record, groups

PICTURED = {  # and how a newcomer reads them
    "best": "feta, best",
    "default": "feta, default call",
    "fast": "feta, layer by layer",
    "feta-sensitivity-refined": "feta, layers + short fit",
    "alps-sensitivity-refined": "ALPS + fit",
    "threshold-refined": "magnitude + fit",
}


def tables(records: Sequence[Record], score: str = "lost") -> str:
    half = "validation" if score == "validation_lost" else "test"
    intro = f"Points lost on the {half} half, mean of networks; the best of a column is bold."
    return f"{intro} {origin(records)}\n\n{table(records, score)}"


def sentence(records: Sequence[Record]) -> str:
    """What the default loses with few rows and with all."""
    found = columns([one for one in records if one["recipe"] == "default"], "lost")
    lost = {place: column.means["default"] for place, column in found.items()}
    few = min(rows for rows, _ in lost if isinstance(rows, int))
    members = {member for column in found.values() for member in column.members}
    of_each = len({seed for _, seed in members})
    networks = f"{len({net for net, _ in members})} small networks"
    networks += f", {of_each} of each kind," if of_each > 1 else ""
    told = [f"{lost[few, share]:.1f} and {lost['all', share]:.1f} at {100 * share:g} % zeros"
            for share in sorted({share for _, share in lost})]  # fmt: skip
    return (
        f"pruned with {few} samples and with all of them, the mean of {networks} loses "
        f"{', '.join(told)} (points of accuracy, default call)"
    )


def table(records: Sequence[Record], score: str) -> str:
    """A line per recipe; the best of a column is bold."""
    found = columns(records, score)
    rows, shares = list(dict.fromkeys(rows for rows, _ in found)), sorted({share for _, share in found})
    head = [f"at {' / '.join(f'{100 * share:g}' for share in shares)} %", *map(said, rows)]
    head.append(f"median seconds at {100 * shares[-1]:g} %")
    lines = [head, ["---"] * len(head)]

    def line(name: str, texts: Mapping[Place, str], last: str = "") -> None:
        cells = (" / ".join(texts.get((count, share), "–") for share in shares) for count in rows)
        lines.append([name, *cells, last])

    for recipe in recipes_of(records):
        texts = {place: lost(one, recipe) for place, one in found.items()}
        times = {p: short(one.seconds[recipe]) for p, one in found.items() if recipe in one.seconds}
        line(
            called(recipe),
            texts,
            " / ".join(times.get((count, shares[-1]), "–") for count in rows),
        )
    line("cells", {place: counted(len(one.members), one.begun) for place, one in found.items()})
    if not any(one.seconds for one in found.values()):  # all cells ran beside others
        lines = [line[:-1] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{membership(found)}"


def lost(column: Column, recipe: str) -> str:
    """Of recipes that print the same, all are the best."""
    if recipe not in column.means:
        return "failed" if recipe in column.failed else "–"
    printed = {name: f"{value:.2f}" for name, value in column.means.items()}
    best = min(printed.values(), key=float)
    return f"**{printed[recipe]}**" if printed[recipe] == best else printed[recipe]


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


def said(rows: int | str) -> str:
    return f"{rows:,} rows" if isinstance(rows, int) else f"{rows} rows"


def called(recipe: str) -> str:
    return f'`effort="{recipe}"`' if recipe in EFFORTS else recipe.replace("-", ", ")


def short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def counted(count: int, begun: int) -> str:
    return str(count) if count == begun else f"{count} of {begun}"


def picture(records: Sequence[Record], score: str, name: str) -> Figure:
    return Figure(name, tuple(panels(records, score)), same_y=True)


def panels(records: Sequence[Record], score: str) -> list[LineChart]:
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
        lines = {PICTURED[one]: [Point(x, means.get(one)) for x, means in panel.items()] for one in shown}
        title = f"{100 * share:g} % zeros, mean of {networks} network{'s' if networks > 1 else ''}"
        axes = {"log_x": True, "ticks": ticks, "from_zero": True}
        charts.append(LineChart(title, "unlabelled samples", "points of accuracy lost", lines, **axes))
    return charts
