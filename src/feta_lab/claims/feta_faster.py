"""Claim of Figure 2: FeTa is up to 8 times faster than LOBS.

Compared are the medians of the pruning seconds over the seeds that both have, in timed cells only. The claim holds
when LOBS takes at least 8 times as long in some network and feta is faster in so many networks that a fair coin
would get there with a probability of at most 5 % (5 of 5, or 7 of 8): the largest of many ratios is large by
chance. It does not hold where feta is faster in no network; anything else depends on the network.
"""

import statistics
from collections.abc import Sequence

from feta_lab import paper
from feta_lab.claims.cells import runs_of, shared
from feta_lab.claims.finding import LEVEL, Cell, Finding, VerdictName, by_lot, needs, networks
from feta_lab.results import Record
from feta_lab.results.summaries import duration

KEY, CLAIM = "feta-faster", "FeTa is up to 8 times faster than LOBS"
COLUMNS = ("network", "feta (s)", "lobs (s)", "lobs / feta")


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from timed cells that were neither refined nor retrained."""
    times: dict[str, tuple[float, float]] = {}
    for net, runs in runs_of([record for record in records if record.get("timed", True)]).items():
        if pairs := shared(runs, "feta", "lobs"):
            mine, theirs = (statistics.median(pair[i]["prune_seconds"] for pair in pairs) for i in (0, 1))
            times[net] = (mine, theirs)
    if not times:
        return needs(KEY, CLAIM, "timed cells with feta and lobs")
    ratios = {net: theirs / mine for net, (mine, theirs) in times.items()}
    best = max(ratios, key=ratios.__getitem__)
    faster = sum(ratio > 1 for ratio in ratios.values())
    often = by_lot(faster, [1 / 2] * len(ratios)) <= LEVEL
    reached = often and ratios[best] >= paper.SPEEDUP_OVER_LOBS
    verdict: VerdictName = "holds" if reached else "depends" if faster else "does not hold"
    text = f"Faster in {faster} of {networks(len(ratios))}; LOBS takes {min(ratios.values()):.2g} to "
    text += f"{ratios[best]:.2g} times as long as feta (most in {best})."
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (net, round(mine, 3), round(theirs, 3), round(ratios[net], 2)) for net, (mine, theirs) in times.items()
    )
    return Finding(KEY, CLAIM, verdict, text, _why(times), COLUMNS, rows)


def _why(times: dict[str, tuple[float, float]]) -> str:
    """How far our LOBS is from the paper's, whose only printed time includes retraining."""
    printed = {net: paper.TABLE1[net, "lobs"].seconds for net in times if (net, "lobs") in paper.TABLE1}
    if not printed:
        return ""
    mine, theirs = (duration(sum(times[net][i] for net in printed)) for i in (0, 1))
    text = f"Over the {networks(len(printed))} of the paper among these, our LOBS prunes in {theirs} and feta in "
    return f"{text}{mine}; the paper's LOBS, pruning and retraining, took {duration(sum(printed.values()))}."
