"""The answer: which recipe to take, what it costs in accuracy at which sparsity, and for how much time."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from feta_lab.page.blocks import Block, Cell, Facts, Fold, Section, Shown, Table, Text
from feta_lab.page.sections.table1 import machines
from feta_lab.records import groups
from feta_lab.results import Record, Results
from feta_lab.results.summaries import duration

CALLS = {"default": "feta.prune(model, inputs, sparsity)", "fast": 'feta.prune(…, effort="fast")'}
CALLS["best"] = 'feta.prune(…, effort="best")'
Cells = Mapping[tuple[float, object, str], list[Record]]  # by sparsity, rows and recipe


def sections(results: Results) -> list[Section]:
    """One section; none without records of recipes that ran."""
    ran = [record for record in results.of("recipes") if record["accuracy"] is not None]
    cells = {
        (share, rows, name): mine for (share, rows, name), mine in groups(ran, "sparsity", "rows", "recipe").items()
    }
    recipes = list(dict.fromkeys(name for _, _, name in cells))
    common = [place for place in _places(cells) if all((*place, name) in cells for name in recipes)]
    if not common:
        return []
    best = min(recipes, key=lambda name: fmean(lost(cells[*place, name]) for place in common))
    blocks: list[Block] = [Facts(tuple(_facts(cells, best, common))), Text(*_sentences(cells, best, recipes, common))]
    rest = Fold("With fewer samples", (_table("answer-by-samples", cells, recipes, common),))
    blocks += [_table("answer", cells, recipes, _most(common)), *([rest] if _most(common) != common else [])]
    return [Section("The answer", tuple(blocks))]


def lost(records: Sequence[Record]) -> float:
    """Points of test accuracy, mean over networks and seeds."""
    return fmean(record["dense_accuracy"] - record["accuracy"] for record in records)


def seconds(records: Sequence[Record]) -> float | None:
    """The median of those that had the machine to themselves."""
    known = [record["seconds"] for record in records if record.get("timed", True)]
    return median(known) if known else None


def _places(cells: Cells) -> list[tuple[float, object]]:
    """Sparsity and rows, the fewest rows first and all of them last."""
    found = {(share, rows) for share, rows, _ in cells}
    return sorted(found, key=lambda place: (place[0], isinstance(place[1], str), str(place[1]).zfill(9)))


def _most(common: Sequence[tuple[float, object]]) -> list[tuple[float, object]]:
    """Each sparsity with as many rows as it was measured with."""
    return list({share: (share, rows) for share, rows in common}.values())


def _facts(cells: Cells, best: str, common: Sequence[tuple[float, object]]) -> list[tuple[str, str]]:
    shown = _most(common)
    facts = [("the effort to take" if best in CALLS else "the recipe to take", best)]
    facts += [
        (f"points lost at {100 * share:g} % zeros", f"{lost(cells[share, rows, best]):.2f}") for share, rows in shown
    ]
    times = [time for place in shown if (time := seconds(cells[*place, best])) is not None]
    return [*facts, *([("to prune a network", duration(median(times)))] if times else [])]


def _sentences(cells: Cells, best: str, recipes: Sequence[str], common: Sequence[tuple[float, object]]) -> list[str]:
    first = cells[*common[0], best]
    nets = sorted({record["net"] for record in first})
    said = [
        f"Take {CALLS.get(best, best)}: of {len(recipes)} recipes it loses least on average over sparsities and "
        f"numbers of samples, on {', '.join(nets)}; without labels, without retraining."
    ]
    quick = min(recipes, key=lambda name: median(seconds(cells[*place, name]) or 0.0 for place in common))
    if quick != best:
        parts = [f"{lost(cells[*place, quick]):.2f} at {100 * place[0]:g} %" for place in _most(common)]
        time = duration(median(seconds(cells[*place, quick]) or 0.0 for place in _most(common)))
        said.append(f"If seconds count, {CALLS.get(quick, quick)} takes {time} and loses {' and '.join(parts)}.")
    least = [place for place in common if place[1] == common[0][1]]
    parts = [f"{lost(cells[*place, best]):.2f} at {100 * place[0]:g} %" for place in least]
    if least != _most(common):
        said.append(f"With {common[0][1]} samples it loses {' and '.join(parts)}.")
    return [*said, f"Times are medians: {machines(first)}"]


def _table(name: str, cells: Cells, recipes: Sequence[str], common: Sequence[tuple[float, object]]) -> Table:
    """A row per recipe, a column per sparsity and rows; the least loss of a column stands out."""
    order = sorted(recipes, key=lambda name: fmean(lost(cells[*place, name]) for place in common))
    lines: list[tuple[Cell, ...]] = []
    for recipe in order:
        scores = [Shown(f"{lost(cells[*place, recipe]):.2f}", lost(cells[*place, recipe])) for place in common]
        time = median(seconds(cells[*place, recipe]) or 0.0 for place in common)
        lines.append((recipe, *scores, Shown(duration(time), time)))
    strong = frozenset(
        (min(range(len(order)), key=lambda row: lost(cells[*place, order[row]])), column)
        for column, place in enumerate(common, start=1)
    )
    heads = tuple(f"{100 * share:g} %, {rows} samples" for share, rows in common)
    caption = "Points of test accuracy lost, mean over networks; bold: the least"
    return Table(caption, ("recipe", *heads, "time"), tuple(lines), strong, name)
