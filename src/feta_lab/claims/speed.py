"""The claim of Figure 2 on time: FeTa is up to 8 times faster than LOBS."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from feta_lab import paper
from feta_lab.claims.accuracy import runs_at
from feta_lab.claims.finding import Finding, networks, unmeasured
from feta_lab.durations import duration
from feta_lab.page import Cell, Shown, VerdictName
from feta_lab.results import Record

KEY, CLAIM = "feta-faster", "FeTa is up to 8 times faster than LOBS"


def feta_is_faster_than_lobs(records: Sequence[Record], ours: str = "feta") -> Finding:
    """Medians of the pruning times over shared seeds, timed cells only: holds at a ratio of 8 somewhere."""
    ratios: dict[str, float] = {}
    times: dict[str, tuple[float, float]] = {}
    for net, runs in runs_at([record for record in records if record.get("timed", True)]).items():
        shared = set(runs.get(ours, {})) & set(runs.get("lobs", {}))
        if shared:
            mine, theirs = (
                statistics.median(runs[name][seed]["prune_seconds"] for seed in shared)
                for name in (ours, "lobs")
            )
            times[net], ratios[net] = (mine, theirs), theirs / mine
    if not ratios:
        return unmeasured(KEY, CLAIM, "timed cells with feta and lobs")
    best = max(ratios, key=ratios.__getitem__)
    faster = sum(ratio > 1 for ratio in ratios.values())
    verdict: VerdictName = (
        "holds" if ratios[best] >= paper.SPEEDUP_OVER_LOBS else "depends" if faster else "does not hold"
    )
    text = f"Faster in {faster} of {networks(len(ratios))}; LOBS takes {min(ratios.values()):.2g} to "
    text += f"{ratios[best]:.2g} times as long as feta (most in {best})."
    rows: list[tuple[Cell, ...]] = [
        (net, *(Shown(duration(one), one) for one in times[net]), round(ratios[net], 2)) for net in times
    ]
    columns = ("network", "feta", "lobs", "lobs / feta")
    return Finding(KEY, CLAIM, verdict, text, _why(times), columns, tuple(rows))


def _why(times: dict[str, tuple[float, float]]) -> str:
    """How far our LOBS is from the paper's: its time there includes retraining, and is the only one printed."""
    printed = [(net, paper.TABLE1[net, "lobs"]) for net in times if (net, "lobs") in paper.TABLE1]
    if not printed:
        return ""
    mine = sum(times[net][0] for net, _ in printed)
    theirs = sum(times[net][1] for net, _ in printed)
    old = sum(cell.seconds for _, cell in printed)
    return (
        f"Over the {networks(len(printed))} of the paper among these, our LOBS prunes in {duration(theirs)} and "
        f"feta in {duration(mine)}; the paper's LOBS, pruning and retraining, took {duration(old)}."
    )
