"""The README's picture: small networks by the data there is, a ResNet and a language model by their zeros.

See docs/figures.py. A point is a mean: over networks, or over the calibration sets of one network.
"""

import statistics
from collections.abc import Sequence

from recipes_table import PICTURED, panels

from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.records import Record, groups

# As the recipes of the same kind are called, so that they have the same colour; then what was run here alone.
METHODS = {
    "default": PICTURED["default"],
    "feta": PICTURED["fast"],
    "default:alps": PICTURED["alps-sensitivity-refined"],
    "alps": "ALPS",
    "sparsegpt": "SparseGPT",
}


def picture(recipes: Sequence[Record], real: Sequence[Record]) -> Figure:
    whole = [one for one in real if one["limit"] is None]
    charts = (
        panels(recipes, "lost")[-1],
        chart(whole, "resnet-20", "ResNet-20, 1,000 images", "accuracy (%)", "accuracy"),
        chart(whole, "smollm2-135m", "SmolLM2-135M, 64 texts", "perplexity, lower is better", "perplexity"),
    )
    return Figure("outcome", charts)


def chart(records: Sequence[Record], net: str, title: str, axis: str, score: str) -> LineChart:
    """A score against the zeros; methods share their budget by sensitivities where that was run."""
    mine = [one for one in records if one["net"] == net and score in one]
    spread = "sensitivity" if any(one["allocation"] == "sensitivity" for one in mine) else "uniform"
    found = groups([one for one in mine if one["allocation"] == spread], "method", "sparsity")
    lines = {
        name: [Point(100 * share, statistics.mean(one[score] for one in same)) for share, same in sorted(of.items())]
        for method, name in METHODS.items()
        if (of := {share: same for (one, share), same in found.items() if one == method})
    }
    dense = statistics.mean(one[f"dense_{score}"] for one in mine)
    return LineChart(f"{title}; dense {dense:.1f}", "zeros (%)", axis, lines)
