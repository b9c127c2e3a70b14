"""Claim of Figure 3 a and b: pruning one layer costs more accuracy the more layers remain behind it.

Compared are the layers of one network: Spearman's rank correlation of a layer's mean loss with the number of layers
behind it, at each sparsity at which some layer loses a point. The loss rises at a sparsity when the 95 % interval
lies above zero, with all layers and again without the first: a single fragile layer is no trend. A network says yes
when the loss rises at two thirds of the sparsities and falls at none, and no when it falls beyond chance. Layers
are the points, not seeds, so it takes at least six layers to say yes.
"""

from collections.abc import Sequence

from feta_lab.claims.cells import VISIBLE, Trend, agreement, layers_of, rank_correlation, shared_sparsities, summary
from feta_lab.claims.finding import Finding, listed, needs, overall, sentence
from feta_lab.results import Record
from feta_lab.results.summaries import by_setting

KEY, CLAIM = "depth", "Pruning one layer costs more accuracy the more layers remain behind it"
COLUMNS = ("network", "sparsity (%)", "rank correlation", "95 % interval", "layers", "largest loss (points)")


def depth_trends(records: Sequence[Record]) -> dict[str, list[Trend]]:
    """Per network, at each sparsity with a visible loss: the loss of its layers against their remaining depth."""
    found: dict[str, list[Trend]] = {}
    for net, mine in by_setting(records).items():
        layers = layers_of(mine)
        depths = [layer.remaining for layer in layers]
        for sparsity in shared_sparsities(layers):
            losses = [layer.losses[sparsity] for layer in layers]
            correlation = rank_correlation(depths, losses)
            if max(losses) >= VISIBLE and correlation is not None:
                rest = rank_correlation(depths[1:], losses[1:])
                rises = correlation.positive and rest is not None and rest.positive
                found.setdefault(net, []).append(Trend(net, sparsity, correlation, max(losses), rises))
    return found


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from the cells of Figure 3 a and b."""
    trends = depth_trends(records)
    if not trends:
        return needs(KEY, CLAIM, f"cells of Figure 3 with three layers and a loss of {VISIBLE:g} point")
    parts, why, groups = [], [], by_setting(records)
    for net, mine in trends.items():
        rises = sum(trend.rises for trend in mine)
        parts.append(f"{net}: mean rank correlation {summary(mine)}, at {rises} also without the first layer")
        layers = layers_of(groups[net])
        at = max(shared_sparsities(layers))
        number, worst = max(enumerate(layers, start=1), key=lambda item: item[1].losses[at])
        place = f"layer {number} of {len(layers)} ({worst.name})"
        why.append(f"in {net} {place} loses most at {100 * at:g} %: {worst.losses[at]:.1f} points")
    reason = sentence(why)
    if few := [net for net, mine in trends.items() if mine[0].correlation.n < 6]:
        reason += f" Five layers or fewer ({listed(few)}) cannot exclude chance, however they are ordered."
    answers = [agreement(mine) for mine in trends.values()]
    rows = tuple(trend.row() for mine in trends.values() for trend in mine)
    return Finding(KEY, CLAIM, overall(answers), "; ".join(parts) + ".", reason, COLUMNS, rows)
