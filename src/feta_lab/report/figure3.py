"""Figure 3: one layer pruned at a time, and networks on data of k dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feta_lab import page
from feta_lab.claims.depth import depth_trends
from feta_lab.claims.dimension import dimension_trends
from feta_lab.claims.trends import Trend, layers_of, loss, shared_sparsities
from feta_lab.plots import save_figure
from feta_lab.report.files import Exhibit
from feta_lab.results import Record, Results
from feta_lab.summaries import Spread, by_setting, spread

X, Y = "zero weights in the layer (%)", "test accuracy"


def sections(results: Results) -> list[page.Block]:
    blocks: list[page.Block] = []
    layers, networks = results.of("fig3a", "fig3b"), results.of("fig3c")
    if layers:
        note = "One layer pruned by thresholding, all others as they were; mean over the seeds. Layer 1 is the first."
        parts = (
            page.Text(None, (note,)),
            page.Panels(layer_charts(layers)),
            page.Panels(depth_charts(layers)),
        )
        blocks.append(page.Section("Figure 3 a and b", parts, own_colours=True))
    if networks:
        note = (
            "Networks trained on data projected on its first k principal components, their first layer pruned by "
            "thresholding; mean over the networks, the band from the lowest to the highest."
        )
        panels = page.Panels(dimension_charts(networks))
        blocks.append(page.Section("Figure 3 c", (page.Text(None, (note,)), panels), own_colours=True))
    return blocks


def layer_charts(records: Sequence[Record]) -> tuple[page.LineChart, ...]:
    """Accuracy against sparsity, a line per layer, a panel per network."""
    panels = []
    for net, mine in by_setting(records).items():
        places = sorted({(r["depth"], r["layer"]) for r in mine})
        series = tuple(
            page.Series(f"layer {depth}", _curve([r for r in mine if r["layer"] == name], name))
            for depth, name in places
        )
        panels.append(page.LineChart(net, X, Y, series, y_percent=True))
    return tuple(panels)


def depth_charts(records: Sequence[Record]) -> tuple[page.LineChart, ...]:
    """What the claim is about: loss against remaining depth at the three highest sparsities; correlations."""
    panels = []
    for net, mine in by_setting(records).items():
        layers = layers_of(mine)
        series = tuple(
            page.Series(
                f"{100 * share:g} % zeros",
                tuple(page.Point(layer.remaining, layer.losses[share], note=layer.name) for layer in layers[::-1]),
            )
            for share in shared_sparsities(layers)[-3:]
        )
        panels.append(page.LineChart(f"{net}: loss by depth", "layers behind it", "points lost", series))
    trends = [_correlations(net, mine) for net, mine in depth_trends(records).items()]
    if trends:
        title = "Rank correlation of loss and remaining depth"
        panels.append(page.LineChart(title, X, "Spearman, 95 % interval", tuple(trends)))
    return tuple(panels)


def dimension_charts(records: Sequence[Record]) -> tuple[page.LineChart, ...]:
    """Accuracy against sparsity by k; loss against k; correlations."""
    ran = [r for r in records if r["accuracy"] is not None]
    ks = sorted({r["k"] for r in ran})
    curves = tuple(page.Series(f"k = {k}", _curve([r for r in ran if r["k"] == k])) for k in ks)
    shares = sorted({r["sparsity"] for r in ran})[-3:]
    by_k = tuple(
        page.Series(
            f"{100 * share:g} % zeros",
            tuple(_point(k, spread(loss(r) for r in ran if r["k"] == k and r["sparsity"] == share), 1) for k in ks),
        )
        for share in shares
    )
    panels = [
        page.LineChart("Accuracy against sparsity", X, Y, curves, y_percent=True),
        page.LineChart("Loss against k", "k, principal components kept", "points lost", by_k),
    ]
    trends = dimension_trends(records)
    if trends:
        line = _correlations("rank correlation", trends)
        panels.append(page.LineChart("Rank correlation of loss and k", X, "Spearman, 95 % interval", (line,)))
    return tuple(panels)


def _curve(records: Sequence[Record], note: str = "") -> tuple[page.Point, ...]:
    shares = sorted({r["sparsity"] for r in records})
    values = [
        spread(r["accuracy"] for r in records if r["sparsity"] == s and r["accuracy"] is not None) for s in shares
    ]
    return tuple(_point(100 * s, value, 100, note) for s, value in zip(shares, values, strict=True))


def _point(x: float, value: Spread | None, unit: float, note: str = "") -> page.Point:
    if value is None:
        return page.Point(x, None)
    low, high = (value.low / unit, value.high / unit) if value.n > 1 else (None, None)
    return page.Point(x, value.mean / unit, low, high, note)


def _correlations(name: str, trends: Sequence[Trend]) -> page.Series:
    held = [(trend, trend.correlation) for trend in trends]
    return page.Series(name, tuple(page.Point(100 * t.sparsity, r.value, r.low, r.high) for t, r in held))


def exhibits(results: Results) -> list[Exhibit]:
    found = []
    layers, networks = results.of("fig3a", "fig3b"), results.of("fig3c")
    if layers:
        found.append(_grid("fig3ab", "One layer pruned: mean test accuracy (%)", layers, ("net", "depth", "layer")))
    if networks:
        found.append(_grid("fig3c", "First layer pruned: mean test accuracy (%)", networks, ("k",)))
    return found


def _grid(name: str, caption: str, records: Sequence[Record], fields: tuple[str, ...]) -> Exhibit:
    """A row per curve, a column per sparsity; the plain rows have the spread too."""
    ran = [r for r in records if r["accuracy"] is not None]
    shares = sorted({r["sparsity"] for r in ran})
    lines: list[tuple[page.Cell, ...]] = []
    plain = []
    for key in sorted({tuple(r[field] for field in fields) for r in ran}):
        mine = [r for r in ran if tuple(r[field] for field in fields) == key]
        values = [spread(r["accuracy"] for r in mine if r["sparsity"] == share) for share in shares]
        lines.append((*key, *(None if value is None else round(value.mean, 2) for value in values)))
        plain += [
            {**dict(zip(fields, key, strict=True)), "sparsity": share, "accuracy": value.mean,
             "accuracy_low": value.low, "accuracy_high": value.high, "runs": value.n}
            for share, value in zip(shares, values, strict=True)
            if value is not None
        ]  # fmt: skip
    columns = (*fields, *(f"{100 * share:g} %" for share in shares))
    return Exhibit(name, page.Table(caption, columns, tuple(lines)), tuple(plain))


def figures(results: Results, folder: Path) -> list[Path]:
    layers, networks = results.of("fig3a", "fig3b"), results.of("fig3c")
    paths = []
    if layers:
        paths += save_figure(layer_charts(layers), folder / "fig3ab")
        paths += save_figure(depth_charts(layers), folder / "fig3-depth")
    if networks:
        paths += save_figure(dimension_charts(networks), folder / "fig3c")
    return paths
