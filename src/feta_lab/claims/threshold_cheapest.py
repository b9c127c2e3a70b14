"""Claim of Table 1: thresholding with retraining is the cheapest way to 90 % sparsity.

Compared are the seconds of pruning and retraining until the dense accuracy is back, seed by seed; the medians over
the seeds are shown. A method has arrived in a network when it recovered in every seed. A network says yes when
thresholding arrived and no rival that arrived was cheaper in any seed. It says no when thresholding did not arrive
and a rival did, or when some rival was cheaper in every seed. The claim holds when every network says yes and a
method drawn by lot would be the cheapest in all of them with a probability of at most 5 % (one of m methods is the
cheapest in a network with 1 / m).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from feta_lab import paper
from feta_lab.claims.finding import Answer, Cell, Finding, by_lot, listed, networks, overall, unmeasured
from feta_lab.claims.runs import Runs, runs_of
from feta_lab.durations import duration
from feta_lab.results import Record

KEY, CLAIM = "threshold-cheapest", "Thresholding with retraining is the cheapest way to 90 % sparsity"
COLUMNS = (
    "network",
    "threshold (s)",
    "cheapest other",
    "its total (s)",
    "× threshold",
    "threshold is cheapest",
)
HALVES = ("prune_seconds", "retrain_seconds")


class Race(NamedTuple):
    """Thresholding against the cheapest rival in one network; a side that did not arrive has no cells."""

    net: str
    answer: Answer
    methods: int
    ours: list[Record]
    rival: str
    theirs: list[Record]


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from the cells of Table 1; untimed cells do not count."""
    tables = runs_of([record for record in records if record.get("timed", True)])
    tables = {net: runs for net, runs in tables.items() if "threshold" in runs and len(runs) > 1}
    races = [race for net, runs in tables.items() if (race := _race(net, runs))]
    if not races:
        return unmeasured(KEY, CLAIM, "timed cells of Table 1 with thresholding and a method that recovered")
    text = f"Cheapest of all methods in {_won(races)} of {networks(len(races))}"
    paper_s = {
        net: {name: runs[name] for name in paper.METHODS if name in runs} for net, runs in tables.items()
    }
    if printed := [race for net, runs in paper_s.items() if (race := _race(net, runs))]:
        text += f"; against the paper's own rivals alone in {_won(printed)} of {len(printed)}"
    if beaten := [race for race in races if race.answer != "yes"]:
        text += f". Matched or beaten by {listed(list(dict.fromkeys(race.rival for race in beaten)))}"
        text += f" in {listed([race.net for race in beaten])}"
    if stuck := [net for net in tables if net not in {race.net for race in races}]:
        text += f". No method came back to the dense accuracy in every seed in {listed(stuck)}"
    single = [_cheapest(runs, seed) for runs in tables.values() for seed in runs["threshold"]]
    arrived = [name for name in single if name]
    text += (
        f". Seed by seed: cheapest in {arrived.count('threshold')} of the {len(arrived)} trained networks "
    )
    text += f"that any method brought back ({len(single)} were tried)."
    verdict = overall(
        [race.answer for race in races], by_lot(len(races), [1 / race.methods for race in races])
    )
    return Finding(KEY, CLAIM, verdict, text, _why(races), COLUMNS, tuple(_row(race) for race in races))


def _won(races: Sequence[Race]) -> int:
    return sum(race.answer == "yes" for race in races)


def _total(cell: Record) -> float:
    return float(cell["prune_seconds"] + cell["retrain_seconds"])


def _median(cells: Iterable[Record]) -> float:
    return statistics.median(map(_total, cells))


def _race(net: str, runs: Runs) -> Race | None:
    """One network on the seeds that thresholding has; None where no method arrived."""
    seeds = sorted(runs["threshold"])
    arrived = {
        name: {seed: cells[seed] for seed in seeds if seed in cells}
        for name, cells in runs.items()
        if all(cell.get("recovered") for cell in cells.values()) and set(cells) & set(seeds)
    }
    if not arrived:
        return None
    ours = arrived.pop("threshold", {})
    rival = min(arrived, key=lambda name: _median(arrived[name].values()), default="none recovered")
    rivals = {seed: [_total(cells[seed]) for cells in arrived.values() if seed in cells] for seed in ours}
    won = [_total(ours[seed]) <= min(totals) for seed, totals in rivals.items() if totals]
    answer: Answer = "yes" if ours and all(won) else "mixed" if any(won) else "no"
    return Race(net, answer, len(runs), list(ours.values()), rival, list(arrived.get(rival, {}).values()))


def _cheapest(runs: Runs, seed: int) -> str | None:
    """The cheapest of the methods that recovered with this seed."""
    held = {name: cells[seed] for name, cells in runs.items() if cells.get(seed, {}).get("recovered")}
    return min(held, key=lambda name: _total(held[name]), default=None)


def _why(races: Sequence[Race]) -> str:
    """The two halves of the totals, summed over the networks where both sides arrived."""
    both = [(race.ours, race.theirs) for race in races if race.ours and race.theirs]
    if not both:
        return ""
    sums = [
        [sum(statistics.median(cell[half] for cell in pair[i]) for pair in both) for half in HALVES]
        for i in (0, 1)
    ]
    (prune, retrain), (their_prune, their_retrain) = sums
    return (
        f"Summed over {networks(len(both))} (medians over the seeds), thresholding prunes in {duration(prune)} and "
        f"retrains for {duration(retrain)}; the cheapest other method prunes in {duration(their_prune)} and "
        f"retrains for {duration(their_retrain)}."
    )


def _row(race: Race) -> tuple[Cell, ...]:
    ours, theirs = (_median(cells) if cells else None for cells in (race.ours, race.theirs))
    ratio = round(theirs / ours, 2) if ours and theirs else None
    total = None if theirs is None else round(theirs, 3)
    words = {"yes": "yes", "no": "no", "mixed": "in some seeds"}[race.answer]
    return race.net, "not recovered" if ours is None else round(ours, 3), race.rival, total, ratio, words
