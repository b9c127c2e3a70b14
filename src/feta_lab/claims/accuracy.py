"""The claims of Figure 2 on accuracy: who keeps most of it when nothing is retrained."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from feta_lab import paper
from feta_lab.claims.finding import Answer, Finding, between, listed, networks, overall, unmeasured
from feta_lab.page import Cell
from feta_lab.results import Record
from feta_lab.summaries import Spread, at_sparsity, by_method, by_setting, mean_gain, relative_error

EQUAL = 0.1  # points within which two accuracies count as equal: 5 images of a test half of 5,000
WORSE = 1.0  # points below thresholding that count as significantly worse, when every seed is below

# Labels of the paper's solver: as printed first, with the refit that we add second; then as they were before 0.2.
PUBLISHED = ("feta-svrg:debias=false", "feta-svrg", "feta:solver=svrg+debias=false", "feta:solver=svrg")

Runs = dict[str, dict[int, Record]]


def runs_at(records: Sequence[Record], sparsity: float = paper.SPARSITY) -> dict[str, Runs]:
    """network -> method -> seed -> record, at one sparsity."""
    groups = by_setting(at_sparsity(records, sparsity))
    return {net: by_method(mine) for net, mine in groups.items()}


def feta_is_most_accurate(records: Sequence[Record]) -> Finding:
    """feta's mean accuracy against the best other method's, on the seeds that both have."""
    key, claim = "feta-most-accurate", "Without retraining, FeTa is the most accurate at 90 % sparsity"
    found = _against_best(key, claim, runs_at(records), "feta", None)
    missing = "cells of Figure 2 (or of a benchmark) with feta and another method"
    return found or unmeasured(key, claim, missing)


def published_feta(records: Sequence[Record]) -> Finding | None:
    """The same for the paper's own solver against the paper's rivals, where it was run."""
    runs = runs_at([record for record in records if not record["refine"]])
    label = next((name for name in PUBLISHED if any(name in mine for mine in runs.values())), None)
    claim = "The same for FeTa as published (proximal SVRG), against the methods of the paper"
    return _against_best("feta-published", claim, runs, label, paper.METHODS) if label else None


def _against_best(
    key: str, claim: str, tables: Mapping[str, Runs], ours: str, rivals: Collection[str] | None
) -> Finding | None:
    answers: list[Answer] = []
    rows: list[tuple[Cell, ...]] = []
    errors, margins = [], []
    for net, runs in tables.items():
        best = _best_rival(runs, ours, rivals)
        if best is None:
            continue
        rival, gain = best
        answers.append("yes" if gain.mean >= 0 else "mixed" if gain.mean >= -EQUAL else "no")
        margins.append(gain.mean)
        errors += _error_pairs(runs[ours], runs[rival])
        shared = set(runs[ours]) & set(runs[rival])
        means = [statistics.fmean(runs[m][s]["accuracy"] for s in shared) for m in (ours, rival)]
        rows.append((net, round(means[0], 2), rival, round(means[1], 2), round(gain.mean, 2), gain.n))
    if not answers:
        return None
    # Equal to the best is no loss: such a network counts as a yes unless others say no.
    verdict = overall(["yes" if answer == "mixed" else answer for answer in answers])
    first, close = answers.count("yes"), answers.count("mixed")
    text = f"Highest mean accuracy in {first} of {networks(len(answers))}"
    text += f", within {EQUAL} points of the highest in {close} more" if close else ""
    text += f"; ahead of the best other method by {between(margins, ' points', 2)}."
    columns = ("network", f"{ours} (%)", "best other", "its accuracy (%)", "ahead (points)", "seeds")
    return Finding(key, claim, verdict, text, _error_sentence(errors), columns, tuple(rows))


def _best_rival(runs: Runs, ours: str, rivals: Collection[str] | None) -> tuple[str, Spread] | None:
    """The rival it is least ahead of; other settings of feta are not rivals."""
    if ours not in runs:
        return None
    names = [n for n in runs if (n.partition(":")[0] != "feta" if rivals is None else n in rivals)]
    gains = {name: mean_gain(runs[ours], runs[name]) for name in names}
    held = {name: gain for name, gain in gains.items() if gain is not None}
    return min(held.items(), key=lambda item: item[1].mean) if held else None


def _error_pairs(ours: Mapping[int, Record], theirs: Mapping[int, Record]) -> list[tuple[float, float]]:
    pairs = [(relative_error(ours[s]), relative_error(theirs[s])) for s in sorted(set(ours) & set(theirs))]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _error_sentence(errors: Sequence[tuple[float, float]]) -> str:
    if not errors:
        return ""
    mine, theirs = (statistics.fmean(pair[side] for pair in errors) for side in (0, 1))
    lower = sum(a < b for a, b in errors)
    return (
        f"The outputs of its pruned layers differ from the dense ones by {mine:.2f} on average (relative), those "
        f"of the best other method by {theirs:.2f}; they are closer in {lower} of {len(errors)} runs."
    )


def rivals_are_inconsistent(records: Sequence[Record]) -> Finding:
    """Corenet and Net-Trim: better than thresholding in one network, significantly worse in another."""
    key, claim = "rivals-inconsistent", "Corenet and Net-Trim are inconsistent against thresholding"
    tables = runs_at(records)
    gains = {name: _gains(tables, name) for name in ("corenet", "net-trim")}
    measured = {name: found for name, found in gains.items() if len(found) >= 2}
    if not measured:
        return unmeasured(key, claim, "corenet or net-trim beside thresholding in at least two networks")
    answers: list[Answer] = []
    parts, why = [], []
    for name, found in measured.items():
        better = [net for net, gain in found.items() if gain.mean >= -EQUAL]
        worse = [net for net, gain in found.items() if gain.mean <= -WORSE and gain.high < 0]
        answers.append("yes" if better and worse else "no")
        parts.append(
            f"{name}: equal or better in {len(better)}, significantly worse in {len(worse)} of {networks(len(found))}"
        )
        why.append(
            f"{name} gains {between([g.mean for g in found.values()], ' points')}, {_habit(better, worse)}"
        )
    absent = [name for name in gains if name not in measured]
    text = "; ".join(parts) + (f"; {listed(absent)} not measured in two networks" if absent else "") + "."
    others = [name for name in ("lobs", "feta") if _gains(tables, name)]
    columns = ("network", *(f"{name} (points over threshold)" for name in (*measured, *others)))
    nets = [net for net, runs in tables.items() if any(net in found for found in measured.values())]
    shown = {name: _gains(tables, name) for name in (*measured, *others)}
    rows = tuple((net, *(_points(shown[name].get(net)) for name in shown)) for net in nets)
    sentence = "; ".join(why)
    return Finding(
        key, claim, overall(answers), text, sentence[:1].upper() + sentence[1:] + ".", columns, rows
    )


def _habit(better: Sequence[str], worse: Sequence[str]) -> str:
    if better and worse:
        return f"its sign depends on the network (worst in {worse[0]})"
    if better:
        return "never far below thresholding"
    return "below thresholding wherever it differs" if worse else "with no clear difference"


def _gains(tables: Mapping[str, Runs], method: str) -> dict[str, Spread]:
    found = {}
    for net, runs in tables.items():
        gain = mean_gain(runs.get(method, {}), runs.get("threshold", {}))
        if gain is not None:
            found[net] = gain
    return found


def _points(gain: Spread | None) -> float | None:
    return None if gain is None else round(gain.mean, 2)


def gains_are_larger_in_dense(records: Sequence[Record], method: str = "feta") -> Finding:
    """feta's gain over thresholding, the dense network of a data set against the conv one."""
    key = "gains-dense"
    claim = "Gains over thresholding are larger in dense than in convolutional networks"
    tables = runs_at(records)
    gains = _gains(tables, method)
    answers: list[Answer] = []
    rows: list[tuple[Cell, ...]] = []
    losses: list[tuple[float, float]] = []
    for dense in [net for net in gains if net.startswith("dense-")]:
        data = dense.partition(" ")[0].removeprefix("dense-")  # a label may go on with data set and device
        conv = next((net for net in gains if net.partition(" ")[0] == f"conv-{data}"), None)
        if conv is None:
            continue
        a, b = gains[dense], gains[conv]
        gap = a.mean - b.mean
        answers.append("yes" if gap > EQUAL else "no" if gap < -EQUAL else "mixed")
        lost = (_lost(tables[dense]), _lost(tables[conv]))
        losses.append(lost)
        rows.append((data, *map(_points, (a, b)), *(round(one, 2) for one in lost)))
    if not answers:
        return unmeasured(
            key, claim, f"{method} and thresholding in the dense and the conv network of a data set"
        )
    means = [statistics.fmean(float(str(row[side])) for row in rows) for side in (1, 2)]
    text = (
        f"{method} gains more in the dense network in {answers.count('yes')} of {len(answers)} data sets; "
        f"on average {means[0]:+.1f} points in dense and {means[1]:+.1f} in conv networks."
    ).replace("-", "−")
    in_dense, in_conv = (statistics.fmean(pair[side] for pair in losses) for side in (0, 1))
    why = (
        f"Thresholding loses {in_dense:.1f} points in the dense networks and {in_conv:.1f} in the conv ones: "
        "that much is there to be won back."
    )
    columns = (
        "data set",
        "gain, dense (points)",
        "gain, conv (points)",
        "lost by threshold, dense",
        "lost by threshold, conv",
    )
    return Finding(key, claim, overall(answers), text, why, columns, tuple(rows))


def _lost(runs: Runs) -> float:
    return statistics.fmean(r["dense_accuracy"] - r["accuracy"] for r in runs["threshold"].values())
