"""Claim of Figure 2: without retraining, FeTa is the most accurate at 90 % sparsity.

Compared are mean accuracies over the seeds that feta and its best rival in a network share; the best rival is the
one that feta is least ahead of. A network says no when feta is more than 0.1 points (five test images) behind, and
yes otherwise: to equal the best does no harm to the claim. The claim holds when no network says no and a method
drawn by lot would be ahead in as many networks with a probability of at most 5 % (one of m methods is the first in a
network with 1 / m). The paper's own solver is judged by the same rule, against the paper's own rivals.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from feta_lab import paper
from feta_lab.claims.cells import EQUAL, Runs, gains, runs_of, shared
from feta_lab.claims.finding import Answer, Cell, Finding, between, by_lot, needs, networks, overall
from feta_lab.results import Record

KEY, CLAIM = "feta-most-accurate", "Without retraining, FeTa is the most accurate at 90 % sparsity"
SAME = "The same for FeTa as published (proximal SVRG), against the methods of the paper"
# The published solver as printed, then with the refit that we add; older records say feta:solver=svrg.
PUBLISHED = ("feta-svrg:debias=false", "feta:solver=svrg+debias=false", "feta-svrg", "feta:solver=svrg")


def judge(records: Sequence[Record]) -> Finding:
    """The verdict on feta from cells that were neither refined nor retrained."""
    missing = "cells of Figure 2 (or of a benchmark) with feta and another method"
    return _against_best(KEY, CLAIM, runs_of(records), "feta") or needs(KEY, CLAIM, missing)


def judge_published(records: Sequence[Record]) -> Finding | None:
    """The verdict on the published solver; None where it was not run."""
    tables = runs_of([record for record in records if not record["refine"]])
    label = next((name for name in PUBLISHED if any(name in runs for runs in tables.values())), None)
    return _against_best("feta-published", SAME, tables, label, paper.METHODS) if label else None


def _against_best(
    key: str, claim: str, tables: Mapping[str, Runs], ours: str, rivals: Collection[str] | None = None
) -> Finding | None:
    """One method against the best of `rivals`, by default all methods but the forms of feta."""
    rows: list[tuple[Cell, ...]] = []
    margins, odds = [], []
    errors: list[list[float]] = []
    for net, runs in tables.items():
        names = [name for name in runs if (not name.startswith("feta") if rivals is None else name in rivals)]
        ahead = {name: statistics.fmean(found) for name in names if (found := gains(runs, ours, name))}
        if not ahead:
            continue
        best = min(ahead, key=ahead.__getitem__)
        margins.append(ahead[best])
        odds.append(1 / (1 + len(ahead)))
        pairs = shared(runs, ours, best)
        mine, theirs = (round(statistics.fmean(pair[i]["accuracy"] for pair in pairs), 2) for i in (0, 1))
        rows.append((net, mine, best, theirs, round(ahead[best], 2), len(pairs)))
        layers = [[_numbers(record.get("relative_error")) for record in pair] for pair in pairs]
        errors += [list(map(statistics.fmean, both)) for both in layers if all(both)]
    if not margins:
        return None
    answers: list[Answer] = ["no" if margin < -EQUAL else "yes" for margin in margins]
    first = sum(margin > 0 for margin in margins)
    close = sum(-EQUAL <= margin <= 0 for margin in margins)
    text = f"Highest mean accuracy in {first} of {networks(len(rows))}"
    text += f", within {EQUAL} points of the highest in {close} more" if close else ""
    text += f"; ahead of the best other method by {between(margins, 2)} points."
    columns = ("network", f"{ours} (%)", "best other", "its accuracy (%)", "ahead (points)", "seeds")
    verdict = overall(answers, by_lot(first, odds))
    return Finding(key, claim, verdict, text, _why(errors), columns, tuple(rows))


def _numbers(value: Any) -> list[float]:
    """The relative errors of the layers, however many were recorded."""
    return [one for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]


def _why(errors: Sequence[Sequence[float]]) -> str:
    if not errors:
        return ""
    mine, theirs = (statistics.fmean(pair[i] for pair in errors) for i in (0, 1))
    closer = sum(a < b for a, b in errors)
    return (
        f"The outputs of its pruned layers differ from the dense ones by {mine:.2f} on average (relative), those "
        f"of the best other method by {theirs:.2f}; they are closer in {closer} of {len(errors)} runs."
    )
