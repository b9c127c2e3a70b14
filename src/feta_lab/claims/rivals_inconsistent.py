"""Claim of Figure 2: Corenet and Net-Trim are inconsistent against thresholding.

Compared are their gains over thresholding in points, as means over the shared seeds of each network. A rival says
yes when three things are true: it is equal or better (at most 0.1 points behind) in one network; it is
significantly worse in another (at least 1 point behind on average, and behind in every seed); and its gain differs
between networks by more than the seeds explain (one-way analysis of variance, p at most 5 %). Without the last, noise
alone would look inconsistent. It says no when it is never better or never worse. The claim holds when both say yes.
"""

import statistics
from collections.abc import Collection, Sequence

from scipy.stats import f_oneway

from feta_lab.claims.cells import EQUAL, gains, runs_of
from feta_lab.claims.finding import LEVEL, Answer, Cell, Finding, between, needs, networks, overall, sentence
from feta_lab.results import Record

KEY, CLAIM = "rivals-inconsistent", "Corenet and Net-Trim are inconsistent against thresholding"
RIVALS = ("corenet", "net-trim")
WORSE = 1.0  # points below thresholding that count as significantly worse, when every seed is below


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from cells that were neither refined nor retrained."""
    tables = runs_of(records)
    names = (*RIVALS, "lobs", "feta")  # the last two are shown beside the rivals
    found = {n: {net: gain for net, runs in tables.items() if (gain := gains(runs, n))} for n in names}
    measured = [name for name in RIVALS if len(found[name]) >= 2]
    if not measured:
        return needs(KEY, CLAIM, "corenet or net-trim beside thresholding in at least two networks")
    means = {n: {net: statistics.fmean(gain) for net, gain in mine.items()} for n, mine in found.items()}
    answers: list[Answer] = []
    parts, why = [], []
    for name in measured:
        better = [net for net, mean in means[name].items() if mean >= -EQUAL]
        worse = [net for net, mean in means[name].items() if mean <= -WORSE and max(found[name][net]) < 0]
        answers.append("no" if not (better and worse) else "yes" if _differ(found[name].values()) else "mixed")
        counts = f"equal or better in {len(better)}, significantly worse in {len(worse)}"
        parts.append(f"{name}: {counts} of {networks(len(means[name]))}")
        why.append(f"{name} gains {between(means[name].values())} points over thresholding")
    parts += [f"{name} is not measured in two networks" for name in RIVALS if name not in measured]
    shown = [name for name in names if name in measured or (name not in RIVALS and found[name])]
    columns = ("network", *(f"{name} (points over threshold)" for name in shown))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (net, *(round(means[name][net], 2) if net in means[name] else None for name in shown))
        for net in tables
        if any(net in found[name] for name in measured)
    )
    return Finding(KEY, CLAIM, overall(answers), "; ".join(parts) + ".", sentence(why), columns, rows)


def _differ(groups: Collection[Sequence[float]]) -> bool:
    """Whether networks differ by more than their seeds; one seed in every network cannot tell."""
    return max(map(len, groups)) > 1 and bool(f_oneway(*groups).pvalue <= LEVEL)
