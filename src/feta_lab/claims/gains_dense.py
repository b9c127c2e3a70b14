"""Claim of Figure 2: gains over thresholding are larger in dense than in convolutional networks.

Compared are feta's gains over thresholding in points, as means over the seeds, in the dense and the convolutional
network of each data set. A data set says yes when the dense network gains over 0.1 points more, and no when it gains
over 0.1 points less. The claim holds when every data set says yes and the dense networks in their worst seeds gain
more than the convolutional ones in their best seeds beyond chance (exact one-sided Mann-Whitney test, p at most
5 %). Three data sets that say yes prove little, since three coins do so once in eight; three dense networks that all
gain more than all three convolutional ones come about at most once in twenty.
"""

import statistics
from collections.abc import Sequence

from scipy.stats import mannwhitneyu

from feta_lab.claims.cells import EQUAL, gains, loss, runs_of
from feta_lab.claims.finding import Answer, Cell, Finding, needs, overall, signed
from feta_lab.results import Record

KEY, CLAIM = "gains-dense", "Gains over thresholding are larger in dense than in convolutional networks"
COLUMNS = ("data set", "gain, dense", "gain, conv", "lost by threshold, dense", "lost by threshold, conv")


def judge(records: Sequence[Record]) -> Finding:
    """The verdict from cells that were neither refined nor retrained."""
    tables = runs_of(records)
    seeds = {net: found for net, runs in tables.items() if (found := gains(runs, "feta"))}
    gain = {net: statistics.fmean(found) for net, found in seeds.items()}
    pairs = []
    for dense in [net for net in gain if net.startswith("dense-")]:
        data = dense.partition(" ")[0].removeprefix("dense-")  # a label may go on with data set and device
        convs = [net for net in gain if net.partition(" ")[0] == f"conv-{data}"]
        pairs += [(data, dense, conv) for conv in convs[:1]]
    if not pairs:
        return needs(KEY, CLAIM, "feta and thresholding in the dense and the conv network of a data set")
    gaps = [gain[dense] - gain[conv] for _, dense, conv in pairs]
    answers: list[Answer] = ["yes" if gap > EQUAL else "no" if gap < -EQUAL else "mixed" for gap in gaps]
    lost = {net: statistics.fmean(map(loss, tables[net]["threshold"].values())) for net in gain}
    sides = [sorted({pair[i] for pair in pairs}) for i in (1, 2)]
    worst, best = ([end(seeds[net]) for net in nets] for nets, end in zip(sides, (min, max), strict=True))
    luck = float(mannwhitneyu(worst, best, alternative="greater", method="exact").pvalue)
    won, missed = ([statistics.fmean(number[net] for net in nets) for nets in sides] for number in (gain, lost))
    text = f"feta gains more in the dense network in {answers.count('yes')} of {len(pairs)} data sets; on average "
    text += f"{signed(won[0], 1)} points in dense and {signed(won[1], 1)} in conv networks."
    why = f"Thresholding loses {missed[0]:.1f} points in the dense networks and {missed[1]:.1f} in the conv ones: "
    why += "that much is there to be won back."
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (data, *(round(number[net], 2) for number in (gain, lost) for net in nets)) for data, *nets in pairs
    )
    return Finding(KEY, CLAIM, overall(answers, luck), text, why, COLUMNS, rows)
