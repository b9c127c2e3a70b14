"""Benchmarks under the results: their panels, and their tables behind a fold."""

from __future__ import annotations

from feta_lab import page
from feta_lab.bench_report import bench_table, sparsity_charts
from feta_lab.experiments.bench import table
from feta_lab.results import Results
from feta_lab.summaries import by_setting


def sections(results: Results) -> list[page.Block]:
    """A section per benchmark folder; without compensation first, as the paper has none."""
    found: list[page.Block] = []
    for source in results.sources:
        if source.kind != "bench":
            continue
        # A network that was run on two devices or data sets is two networks here.
        rows = [row | {"net": net} for net, mine in by_setting(source.records).items() for row in table(mine)]
        blocks: list[page.Block] = []
        for on in (False, True):
            if any(row["compensate"] == on for row in rows):
                words = "With compensation of the last layer" if on else "Without compensation"
                panels = page.Panels(sparsity_charts(rows, on))
                parts = (panels, page.Fold("Every cell", (bench_table(rows, on),)))
                blocks.append(page.Fold(words, parts) if on else page.Section(words, parts))
        found.append(page.Section(f"Benchmark {source.name}", tuple(blocks)))
    return found
