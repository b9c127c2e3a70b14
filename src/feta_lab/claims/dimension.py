"""Claim of Figure 3 c: networks trained on data of more dimensions lose more when pruned.

Compared are the networks: Spearman's rank correlation of k, the number of principal components kept, with the loss,
at each sparsity with a visible loss. The loss is measured twice: in points, and as the share of what there is to
lose, loss / (dense accuracy - chance), because more components also make better networks. Each measure says yes when
the 95 % interval lies above zero at two thirds of the sparsities and below zero at none, and no when the loss
falls beyond chance. The claim holds when both say yes.
"""

from collections.abc import Callable, Sequence

from feta_lab import paper
from feta_lab.claims.cells import VISIBLE, Trend, agreement, loss, mean_by, rank_correlation, summary
from feta_lab.claims.finding import Finding, needs, overall
from feta_lab.results import Record

KEY, CLAIM = "dimension", "Networks trained on data of more dimensions lose more when pruned"
COLUMNS = ("network", "sparsity (%)", "rank correlation", "95 % interval", "networks", "largest loss (points)")


def dimension_trends(records: Sequence[Record], measure: Callable[[Record], float] = loss) -> list[Trend]:
    """The measured loss against k at each sparsity with a visible loss; every network is a point."""
    found = []
    ran = [record for record in records if record["accuracy"] is not None]
    for sparsity in sorted({record["sparsity"] for record in ran}):
        at = [record for record in ran if record["sparsity"] == sparsity]
        largest = max(mean_by(at, "k", loss).values())
        correlation = rank_correlation([r["k"] for r in at], [measure(r) for r in at])
        if largest >= VISIBLE and correlation is not None:
            case = "conv-cifar on k components"
            found.append(Trend(case, sparsity, correlation, largest, correlation.positive))
    return found


def share_lost(record: Record) -> float:
    """The loss as a share of what lies above chance; a network at chance has nothing to lose."""
    room = record["dense_accuracy"] - paper.CHANCE
    return loss(record) / room if room > 0 else 0.0


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from the cells of Figure 3 c."""
    trends, shares = dimension_trends(records), dimension_trends(records, share_lost)
    if not trends or not shares:
        return needs(KEY, CLAIM, f"cells of Figure 3 c with two values of k and a loss of {VISIBLE:g} point")
    last = trends[-1]
    text = f"Mean rank correlation of k with the points lost {summary(trends)}; with the share lost of the accuracy "
    text += f"above chance {summary(shares)} ({last.correlation.n} networks)."
    at = [r for r in records if r["accuracy"] is not None and r["sparsity"] == last.sparsity]
    lost, part = mean_by(at, "k", loss), mean_by(at, "k", share_lost)
    dense = mean_by(at, "k", lambda record: record["dense_accuracy"])
    ends = [
        f"{lost[k]:.1f} points at k = {k} ({100 * part[k]:.0f} % of what lies above chance; dense {dense[k]:.1f} %)"
        for k in (min(lost), max(lost))
    ]
    why = f"At {100 * last.sparsity:g} % the first layer's pruning costs {' and '.join(ends)}."
    rows, verdict = tuple(trend.row() for trend in trends), overall([agreement(trends), agreement(shares)])
    return Finding(KEY, CLAIM, verdict, text, why, COLUMNS, rows)
