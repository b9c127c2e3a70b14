"""Claim of Table 1: thresholding with retraining is the cheapest way to 90 % sparsity.

Compared are the seconds of pruning and retraining until the dense accuracy is back, seed by seed; the medians over
the seeds are shown. A method has arrived in a network when it recovered in every seed. A network says yes when
thresholding arrived and no rival that arrived was cheaper in any seed. It says no when only rivals arrived, or when
some rival was cheaper in every seed. The claim holds when every network says yes and a method drawn by lot would be
the cheapest in all of them with a probability of at most 5 % (one of m methods is so in a network with 1 / m).
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from feta_lab import paper
from feta_lab.claims.cells import Runs, runs_of
from feta_lab.claims.finding import Answer, Cell, Finding, by_lot, listed, needs, networks, overall
from feta_lab.results import Record
from feta_lab.results.summaries import duration

KEY, CLAIM = "threshold-cheapest", "Thresholding with retraining is the cheapest way to 90 % sparsity"
COLUMNS = ("network", "threshold (s)", "cheapest other", "its total (s)", "× threshold", "threshold is cheapest")


class Race(NamedTuple):
    """Thresholding and its cheapest rival in one network; a side that did not arrive has no cells."""

    answer: Answer
    methods: int
    rival: str
    sides: tuple[Sequence[Record], Sequence[Record]]


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from the cells of Table 1; untimed cells do not count."""
    tables = runs_of([record for record in records if record.get("timed", True)])
    tables = {net: runs for net, runs in tables.items() if "threshold" in runs and len(runs) > 1}
    races = {net: race for net, runs in tables.items() if (race := _race(runs))}
    if not races:
        return needs(KEY, CLAIM, "timed cells of Table 1 with thresholding and a method that recovered")
    answers = [race.answer for race in races.values()]
    text = f"Cheapest of all methods in {answers.count('yes')} of {networks(len(races))}"
    among = [{name: runs[name] for name in paper.METHODS if name in runs} for runs in tables.values()]
    if printed := [race.answer for runs in among if (race := _race(runs))]:
        text += f"; against the paper's own rivals alone in {printed.count('yes')} of {len(printed)}"
    if beaten := {net: race.rival for net, race in races.items() if race.answer != "yes"}:
        text += f". Matched or beaten by {listed(sorted(set(beaten.values())))} in {listed(list(beaten))}"
    if stuck := [net for net in tables if net not in races]:
        text += f". No method came back to the dense accuracy in every seed in {listed(stuck)}"
    single = [_cheapest(runs, seed) for runs in tables.values() for seed in runs["threshold"]]
    text += f". Seed by seed: cheapest in {single.count('threshold')} of the {len(single) - single.count(None)} "
    text += f"trained networks that any method brought back ({len(single)} were tried)."
    luck = by_lot(len(races), [1 / race.methods for race in races.values()])
    rows = tuple(_row(net, race) for net, race in races.items())
    return Finding(KEY, CLAIM, overall(answers, luck), text, _why(races.values()), COLUMNS, rows)


def _total(cell: Record) -> float:
    return float(cell["prune_seconds"] + cell["retrain_seconds"])


def _race(runs: Runs) -> Race | None:
    """One network on the seeds that thresholding has; None where no method arrived."""
    arrived = {
        name: {seed: cells[seed] for seed in runs["threshold"] if seed in cells}
        for name, cells in runs.items()
        if all(cell.get("recovered") for cell in cells.values()) and set(cells) & set(runs["threshold"])
    }
    if not arrived:
        return None
    ours = arrived.pop("threshold", {})
    rival = min(arrived, key=lambda n: median(map(_total, arrived[n].values())), default="none recovered")
    rivals = {seed: [_total(cells[seed]) for cells in arrived.values() if seed in cells] for seed in ours}
    won = [_total(ours[seed]) <= min(totals) for seed, totals in rivals.items() if totals]
    answer: Answer = "yes" if ours and all(won) else "mixed" if any(won) else "no"
    return Race(answer, len(runs), rival, (list(ours.values()), list(arrived.get(rival, {}).values())))


def _cheapest(runs: Runs, seed: int) -> str | None:
    """The cheapest of the methods that recovered with this seed."""
    held = {name: cells[seed] for name, cells in runs.items() if cells.get(seed, {}).get("recovered")}
    return min(held, key=lambda name: _total(held[name]), default=None)


def _why(races: Iterable[Race]) -> str:
    """The two halves of the totals, summed over the networks where both sides arrived."""
    both = [race.sides for race in races if all(race.sides)]
    words = []
    for side in (0, 1):
        cells = [[(cell["prune_seconds"], cell["retrain_seconds"]) for cell in sides[side]] for sides in both]
        halves = [duration(sum(median(pair[half] for pair in mine) for mine in cells)) for half in (0, 1)]
        words.append(f"prunes in {halves[0]} and retrains for {halves[1]}")
    over = f"Summed over {networks(len(both))} (medians over the seeds)"
    return f"{over}, thresholding {words[0]}; the cheapest other method {words[1]}." if both else ""


def _row(net: str, race: Race) -> tuple[Cell, ...]:
    ours, theirs = (round(median(map(_total, cells)), 3) if cells else None for cells in race.sides)
    ratio = round(theirs / ours, 2) if ours and theirs else None
    words = {"yes": "yes", "no": "no", "mixed": "in some seeds"}[race.answer]
    return net, "not recovered" if ours is None else ours, race.rival, theirs, ratio, words
