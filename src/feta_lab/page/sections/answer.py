"""The answer: which recipe to take, what it costs in accuracy at which sparsity, and for how much time."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from feta_lab.page.blocks import Cell, Facts, Fold, Section, Shown, Table, Text
from feta_lab.page.sections.table1 import machines
from feta_lab.records import groups
from feta_lab.results import Record, Results
from feta_lab.results.summaries import duration

CALLS = {"default": "feta.prune(model, inputs, sparsity)", "fast": 'feta.prune(…, effort="fast")'}
CALLS["best"] = 'feta.prune(…, effort="best")'
QUICK = 0.2  # of the best recipe's time, that a quick one may take
SHOWN = 5  # recipes in the table that is open
Place = tuple[float, object]  # sparsity and number of samples


def sections(results: Results) -> list[Section]:
    """One section; none without records of recipes that can be compared."""
    found = compared([record for record in results.of("recipes") if record["accuracy"] is not None])
    if found is None:
        return []
    every = Fold("Every recipe, and with fewer samples", (_table("answer-by-samples", found, found.places),))
    table = _table("answer", found, found.most, SHOWN)
    return [Section("The answer", (Facts(tuple(_facts(found))), Text(*_sentences(found)), table, every))]


@dataclass(frozen=True)
class Compared:
    """Recipes on the same networks, seeds, sparsities and numbers of samples, the one that loses least first."""

    cells: dict[tuple[str, Place], list[Record]]
    recipes: list[str]
    places: list[Place]

    @property
    def most(self) -> list[Place]:
        """Each sparsity with as many samples as it was measured with."""
        return list({place[0]: place for place in self.places}.values())

    def lost(self, recipe: str, *places: Place) -> float:
        """Points of test accuracy, mean over networks and seeds."""
        mine = (record for place in places for record in self.cells[recipe, place])
        return fmean(record["dense_accuracy"] - record["accuracy"] for record in mine)

    def seconds(self, recipe: str, places: Sequence[Place]) -> float:
        """The median; of runs that had the machine to themselves, where there are any."""
        mine = [record for place in places for record in self.cells[recipe, place]]
        return float(median(record["seconds"] for record in (list(filter(_alone, mine)) or mine)))

    def losses(self, recipe: str, places: Sequence[Place]) -> str:
        return " and ".join(f"{self.lost(recipe, place):.2f} at {100 * place[0]:g} %" for place in places)


def compared(records: Sequence[Record]) -> Compared | None:
    """The cells that all recipes have; None: there are none."""
    recipes = list(dict.fromkeys(record["recipe"] for record in records))
    cells: dict[tuple[str, Place], list[Record]] = {}
    for place, mine in groups(records, "sparsity", "rows").items():
        known = [{(r["net"], r["seed"]) for r in mine if r["recipe"] == recipe} for recipe in recipes]
        common = set.intersection(*known)
        for record in mine:
            if (record["net"], record["seed"]) in common:
                cells.setdefault((record["recipe"], (place[0], place[1])), []).append(record)
    # The fewest samples first and all of them last.
    places = sorted({place for _, place in cells}, key=lambda p: (p[0], isinstance(p[1], str), str(p[1]).zfill(9)))
    if not places:
        return None
    found = Compared(cells, recipes, places)
    # Of two that lose the same, as they are shown, an effort goes first: it can be typed.
    order = sorted(recipes, key=lambda recipe: (round(found.lost(recipe, *places), 2), recipe not in CALLS))
    return Compared(cells, order, places)


def _alone(record: Record) -> bool:
    return bool(record.get("timed", True))


def _facts(found: Compared) -> list[tuple[str, str]]:
    best = found.recipes[0]
    lost = [(f"points lost at {100 * p[0]:g} % zeros", f"{found.lost(best, p):.2f}") for p in found.most]
    what = "the effort to take" if best in CALLS else "the recipe to take"
    return [(what, best), *lost, ("to prune a network", duration(found.seconds(best, found.most)))]


def _sentences(found: Compared) -> list[str]:
    best, first = found.recipes[0], found.cells[found.recipes[0], found.places[0]]
    nets = ", ".join(sorted({record["net"] for record in first}))
    said = [
        f"Take {CALLS.get(best, best)}: of {len(found.recipes)} recipes it loses least, on average over sparsities "
        f"and numbers of samples, on {nets}; without labels, without retraining."
    ]
    limit = QUICK * found.seconds(best, found.most)
    quick = next((name for name in found.recipes if found.seconds(name, found.most) <= limit), None)
    if quick is not None:
        time = duration(found.seconds(quick, found.most))
        said.append(
            f"If seconds count, {CALLS.get(quick, quick)} takes {time} and loses {found.losses(quick, found.most)}."
        )
    if (least := [place for place in found.places if place[1] == found.places[0][1]]) != found.most:
        said.append(f"With {least[0][1]} samples {best} loses {found.losses(best, least)}.")
    shared = "" if any(map(_alone, first)) else ", and other runs shared the machine"
    return [*said, f"Times are medians{shared}: {machines(first)}"]


def _table(name: str, found: Compared, places: Sequence[Place], most: int | None = None) -> Table:
    """A row per recipe, a column per sparsity and number of samples; the least loss of a column stands out."""
    recipes = found.recipes[:most]
    lines: list[tuple[Cell, ...]] = []
    for recipe in recipes:
        scores = [Shown(f"{found.lost(recipe, place):.2f}", found.lost(recipe, place)) for place in places]
        time = found.seconds(recipe, places)
        lines.append((recipe, *scores, Shown(duration(time), time)))
    strong = frozenset(
        (min(range(len(recipes)), key=lambda row: found.lost(recipes[row], place)), column)
        for column, place in enumerate(places, start=1)
    )
    heads = tuple(f"{100 * share:g} %, {samples} samples" for share, samples in places)
    caption = "Points of test accuracy lost, mean over networks; bold: the least; time: median of the row's cells"
    return Table(caption, ("recipe", *heads, "time"), tuple(lines), strong, name)
