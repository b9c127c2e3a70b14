"""Figure 3: one layer pruned at a time (a and b), and networks on data of k dimensions (c)."""

from collections.abc import Mapping, Sequence

from feta_lab.claims.cells import Trend
from feta_lab.claims.depth import depth_trends
from feta_lab.claims.dimension import dimension_trends
from feta_lab.page.blocks import Fold, Section, Table, Text
from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.page.sections.tables import Entry, Row, groups, numbers, pivot, point, scores
from feta_lab.records import groups as records_by
from feta_lab.results import Record, Results

LAYERS = (
    "One layer is pruned by thresholding, the others stay as they were. Mean over the seeds, the band from the "
    "lowest to the highest; around rank correlations it is their interval. Layer 1 is the first."
)
DIMENSIONS = (
    "Networks are trained on data projected on its first k principal components; their first layer is pruned by "
    "thresholding. Mean over the networks, the band from the lowest to the highest."
)
X, Y = "zero weights in the layer (%)", "test accuracy (%)"


def sections(results: Results) -> list[Section]:
    """A section for the layers and one for k, as far as there are records."""
    found = []
    layers, networks = results.of("fig3a", "fig3b"), results.of("fig3c")
    if layers:
        rows = summary(layers, "depth", "layer")
        figures = Figure("fig3ab", layer_charts(rows)), Figure("fig3-depth", depth_charts(rows, layers))
        table = accuracy_table("fig3ab", "One layer pruned", ("net", "depth", "layer"), rows)
        blocks = (Text(LAYERS), *figures, Fold("Every layer and sparsity", (table,)))
        found.append(Section("Figure 3 a and b", blocks))
    if networks:
        rows = summary(networks, "k")
        figure = Figure("fig3c", dimension_charts(rows, networks))
        fold = Fold("Every k and sparsity", (accuracy_table("fig3c", "First layer pruned", ("k",), rows),))
        found.append(Section("Figure 3 c", (Text(DIMENSIONS), figure, fold)))
    return found


def summary(records: Sequence[Record], *fields: str) -> Sequence[Row]:
    """Accuracy and loss over the seeds, a row per network, values of `fields`, and sparsity."""
    rows = []
    for net, (*values, share), cells in groups(records, *fields, "sparsity"):
        runs = sum(r["accuracy"] is not None for r in cells)
        row = {"net": net, **dict(zip(fields, values, strict=True)), "sparsity": share, "runs": runs, **scores(cells)}
        rows.append(row | {"behind": cells[0].get("layers", 0) - cells[0].get("depth", 0)})
    return rows


def layer_charts(rows: Sequence[Row]) -> tuple[LineChart, ...]:
    """Accuracy against sparsity, a line per layer, a panel per network."""
    nets = records_by(rows, "net").items()
    return tuple(LineChart(net, X, Y, _curves(mine, "layer {}", "depth")) for (net,), mine in nets)


def depth_charts(rows: Sequence[Row], records: Sequence[Record]) -> tuple[LineChart, ...]:
    """What the claim is about: loss against remaining depth at the three highest sparsities; correlations."""
    panels = [
        LineChart(f"{net}: loss by depth", "layers behind it", "points lost", _losses(mine[::-1], "behind"))
        for (net,), mine in records_by(rows, "net").items()
    ]
    return (*panels, *_correlations("Rank correlation of loss and remaining depth", depth_trends(records)))


def dimension_charts(rows: Sequence[Row], records: Sequence[Record]) -> tuple[LineChart, ...]:
    """Accuracy against sparsity by k; loss against k at the three highest sparsities; correlations."""
    trends = {"rank correlation": dimension_trends(records)}
    return (
        LineChart("Accuracy against sparsity", X, Y, _curves(rows, "k = {}", "k")),
        LineChart("Loss against k", "k, principal components kept", "points lost", _losses(rows, "k")),
        *_correlations("Rank correlation of loss and k", trends),
    )


def accuracy_table(name: str, words: str, heads: tuple[str, ...], rows: Sequence[Row]) -> Table:
    """Mean accuracies, a column per sparsity; the CSV file has the ranges too."""
    entries, plain = [], []
    for row in (row for row in rows if row["accuracy"]):
        place, column = tuple(row[head] for head in heads), f"{100 * row['sparsity']:g} %"
        entries.append(Entry(place, column, round(row["accuracy"].mean, 2)))
        plain.append(numbers({name: row[name] for name in (*heads, "sparsity", "accuracy", "runs")}))
    return pivot(name, f"{words}: mean test accuracy (%)", heads, entries, numbers=tuple(plain))


def _curves(rows: Sequence[Row], words: str, field: str) -> dict[str, list[Point]]:
    """Accuracy against sparsity, a line per value of a field."""
    return {
        words.format(value): [point(100 * row["sparsity"], row["accuracy"]) for row in mine]
        for (value,), mine in records_by(rows, field).items()
    }


def _losses(rows: Sequence[Row], x: str) -> dict[str, list[Point]]:
    """Points lost against a field, a line for each of the three highest sparsities."""
    shares = sorted({row["sparsity"] for row in rows})[-3:]
    return {
        f"{100 * share:g} % zeros": [point(row[x], row["lost"]) for row in rows if row["sparsity"] == share]
        for share in shares
    }


def _correlations(title: str, trends: Mapping[str, Sequence[Trend]]) -> list[LineChart]:
    """One panel, a line per name with the intervals around it; none without correlations."""
    lines = {
        name: [Point(100 * t.sparsity, t.correlation.value, t.correlation.low, t.correlation.high) for t in mine]
        for name, mine in trends.items()
        if mine
    }
    return [LineChart(title, X, "Spearman, 95 % interval", lines)] if lines else []
