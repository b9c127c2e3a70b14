"""The claim of Table 1: thresholding and retraining is the cheapest way to 90 %."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feta_lab import paper
from feta_lab.claims.finding import Answer, Finding, listed, networks, overall, unmeasured
from feta_lab.durations import duration
from feta_lab.page import Cell, Shown
from feta_lab.results import Record
from feta_lab.summaries import at_sparsity, by_method, by_setting

KEY = "threshold-cheapest"
CLAIM = "Thresholding with retraining is the cheapest way to 90 % sparsity"


@dataclass(frozen=True)
class Race:
    """Thresholding against one rival in one network, on the seeds both have; no rival: none recovered."""

    net: str
    answer: Answer
    threshold: tuple[float, float] | None  # seconds of pruning, of retraining; None: did not recover
    rival: str | None = None
    theirs: tuple[float, float] | None = None


def threshold_is_cheapest(records: Sequence[Record]) -> Finding:
    """Total seconds to a recovered network; a method that did not recover in every seed has not arrived."""
    cells = [record for record in at_sparsity(records, paper.SPARSITY) if record.get("timed", True)]
    races, printed, stuck = [], [], []
    single: list[str | None] = []  # in every seed by itself, the cheapest of those that recovered there
    for net, mine in by_setting(cells).items():
        runs = by_method(mine)
        if "threshold" not in runs or len(runs) < 2:
            continue
        single += [_cheapest(runs, seed) for seed in runs["threshold"]]
        race = _race(net, runs)
        if race is None:
            stuck.append(net)
            continue
        races.append(race)
        old = _race(net, {name: cells for name, cells in runs.items() if name in paper.METHODS})
        printed += [old] if old else []
    if not races:
        missing = (
            "timed cells of Table 1 in which thresholding and another method were retrained until recovered"
        )
        return unmeasured(KEY, CLAIM, missing)
    return Finding(KEY, CLAIM, overall([race.answer for race in races]), _answer(races, printed, stuck, single),
                   _why(races), COLUMNS, tuple(_row(race) for race in races))  # fmt: skip


def _race(net: str, runs: Mapping[str, Mapping[int, Record]]) -> Race | None:
    arrived = {name for name, cells in runs.items() if all(cell.get("recovered") for cell in cells.values())}
    ours = runs["threshold"]
    rivals = {}
    for name in sorted(arrived - {"threshold"}):
        shared = sorted(set(runs[name]) & set(ours))
        if shared:
            rivals[name] = shared
    if "threshold" not in arrived:
        if not rivals:
            return None
        best = min(rivals, key=lambda name: statistics.fmean(map(_total, runs[name].values())))
        return Race(net, "no", None, best, _split(list(runs[best].values())))
    if not rivals:
        return Race(net, "yes", _split(list(ours.values())))
    best = min(rivals, key=lambda name: statistics.fmean(_total(runs[name][seed]) for seed in rivals[name]))
    seeds = rivals[best]
    won = [_total(ours[seed]) <= _total(runs[best][seed]) for seed in seeds]
    answer: Answer = "yes" if all(won) else "mixed" if any(won) else "no"
    mine, theirs = ([cells[seed] for seed in seeds] for cells in (ours, runs[best]))
    return Race(net, answer, _split(mine), best, _split(theirs))


def _cheapest(runs: Mapping[str, Mapping[int, Record]], seed: int) -> str | None:
    totals = {
        name: _total(cells[seed])
        for name, cells in runs.items()
        if seed in cells and cells[seed].get("recovered")
    }
    return min(totals, key=totals.__getitem__) if totals else None


def _total(cell: Record) -> float:
    return float(cell["prune_seconds"] + cell["retrain_seconds"])


def _split(cells: Sequence[Record]) -> tuple[float, float]:
    prune, retrain = ([cell[field] for cell in cells] for field in ("prune_seconds", "retrain_seconds"))
    return statistics.fmean(prune), statistics.fmean(retrain)


def _answer(
    races: Sequence[Race], printed: Sequence[Race], stuck: Sequence[str], single: Sequence[str | None]
) -> str:
    won = sum(race.answer == "yes" for race in races)
    text = f"Cheapest of all methods in {won} of {networks(len(races))}"
    if printed:
        old = sum(race.answer == "yes" for race in printed)
        text += f"; against the paper's own rivals alone in {old} of {len(printed)}"
    beaten = [race for race in races if race.answer != "yes" and race.rival]
    if beaten:
        text += f". Matched or beaten by {listed(list(dict.fromkeys(str(race.rival) for race in beaten)))}"
        text += f" in {listed([race.net for race in beaten])}"
    if stuck:
        text += f". No method came back to the dense accuracy in every seed in {listed(list(stuck))}"
    arrived = [name for name in single if name]
    text += (
        f". Seed by seed: cheapest in {arrived.count('threshold')} of the {len(arrived)} trained networks "
    )
    return text + f"that any method brought back ({len(single)} were tried)."


def _why(races: Sequence[Race]) -> str:
    """The two halves of the totals, summed over the networks where both arrived."""
    both = [(race.threshold, race.theirs) for race in races if race.threshold and race.theirs]
    if not both:
        return ""
    ours, theirs = ([sum(pair[side][half] for pair in both) for half in (0, 1)] for side in (0, 1))
    return (
        f"Summed over {networks(len(both))}, thresholding prunes in {duration(ours[0])} and retrains for "
        f"{duration(ours[1])}; the cheapest other method prunes in {duration(theirs[0])} and retrains for "
        f"{duration(theirs[1])}: it pays {duration(max(theirs[0] - ours[0], 0.0))} more for pruning and "
        + (
            f"saves {duration(ours[1] - theirs[1])} of retraining."
            if theirs[1] < ours[1]
            else f"retrains {duration(theirs[1] - ours[1])} longer as well."
        )
    )


COLUMNS = ("network", "threshold", "cheapest other", "its total", "× threshold", "threshold is cheapest")


def _row(race: Race) -> tuple[Cell, ...]:
    ours = sum(race.threshold) if race.threshold else None
    theirs = sum(race.theirs) if race.theirs else None
    return (
        race.net,
        Shown(duration(ours), ours) if ours is not None else "not recovered",
        race.rival or "none recovered",
        Shown(duration(theirs), theirs) if theirs is not None else None,
        round(theirs / ours, 2) if ours and theirs is not None else None,
        {"yes": "yes", "no": "no", "mixed": "in some seeds"}[race.answer],
    )
