"""The demo: the paper's main job on the embedded digits. Train, prune by several methods, show.

The page and the picture are functions of the records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feta_lab import data as datasets
from feta_lab import networks, page, store
from feta_lab.jobs import prune_network
from feta_lab.records import append, record
from feta_lab.training import Training, train

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
METHODS = ("feta", "threshold", "lobs")
SHOWN, OURS = 0.9, "feta"


def run_demo(folder: Path, *, seed: int = 0, tell: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Train dense-mnist on mnist-mini, prune it, write networks, records and page; the records."""
    preset = networks.preset("dense-mnist")
    data = datasets.load("mnist-mini")
    tell(f"training {preset.specification} on {data.label}")
    network = train(preset.specification, data, Training(seed=seed), preset=preset.name)
    dense_bytes = store.save(network, folder / "dense.safetensors")
    runs = []
    for method in METHODS:
        for sparsity in SPARSITIES:
            tell(f"{method}: pruning to {100 * sparsity:g} %")
            pruned, summary = prune_network(network, data, sparsity, method, seed=seed)
            summary["file_bytes"] = {"dense": dense_bytes, "pruned": len(store.encode(pruned))}
            if (method, sparsity) == (OURS, SHOWN):
                store.save(pruned, folder / "pruned.safetensors")
            config = {
                "network": preset.specification,
                "data": data.label,
                "method": method,
                "sparsity": sparsity,
            }
            runs.append(record("demo", config, seed, summary))
            append(folder / "records.jsonl", runs[-1])
    page.write(folder / "report.html", demo_page(runs))
    return runs


def accuracy_chart(runs: Sequence[Mapping[str, Any]]) -> page.LineChart:
    """Test accuracy against sparsity, one line per method, and the dense network's."""
    dense = runs[0]["metrics"]["accuracy"]["dense"]["test"] / 100
    shares = [100 * run["config"]["sparsity"] for run in runs]
    ends = tuple(page.Point(share, dense) for share in (min(shares), max(shares)))
    lines = []
    for name in dict.fromkeys(run["config"]["method"] for run in runs):
        mine = [run for run in runs if run["config"]["method"] == name]
        points = tuple(
            page.Point(100 * run["config"]["sparsity"], run["metrics"]["accuracy"]["pruned"]["test"] / 100)
            for run in mine
        )
        lines.append(page.Series(name, points))
    lines.append(page.Series("dense network", ends, dashed=True))
    return page.LineChart(
        "Test accuracy without retraining",
        "zero weights in the hidden layers (%)",
        "test accuracy",
        tuple(lines),
        y_percent=True,
        caption=f"{runs[0]['config']['network']} on {runs[0]['config']['data']}; 5,000 test digits.",
    )


def demo_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """The page of a demo's records."""
    at = [run for run in runs if run["config"]["sparsity"] == SHOWN]
    shown = next(run["metrics"] for run in at if run["config"]["method"] == OURS)
    files, accuracy = shown["file_bytes"], shown["accuracy"]
    percent = f"{100 * SHOWN:g} %"
    blocks: list[page.Block] = [
        page.Facts(
            (
                ("weights removed from the hidden layers", f"{100 * shown['sparsity']:.1f} %"),
                ("test accuracy, dense", f"{accuracy['dense']['test']:.2f} %"),
                (f"test accuracy, pruned by {OURS}", f"{accuracy['pruned']['test']:.2f} %"),
                ("file size", f"{files['dense'] / 1e3:.0f} → {files['pruned'] / 1e3:.0f} kB"),
            )
        ),
        accuracy_chart(runs),
        page.Table(
            f"Methods at {percent}",
            ("method", "test accuracy (%)", "points lost", "seconds"),
            tuple(_method_row(run) for run in at),
        ),
        page.Table(
            f"Layers at {percent}, pruned by {OURS}",
            ("layer", "shape", "non-zeros", "sparsity", "relative output error"),
            tuple(_layer_row(layer) for layer in shown["layers"]),
        ),
    ]
    config = runs[0]["config"]
    subtitle = f"{config['network']} trained on {config['data']}, hidden layers pruned without retraining"
    return page.render("feta demo", subtitle, blocks, runs[0]["environment"])


def _method_row(run: Mapping[str, Any]) -> tuple[str, float, float, float]:
    accuracy = run["metrics"]["accuracy"]
    pruned, dense = accuracy["pruned"]["test"], accuracy["dense"]["test"]
    return (
        run["config"]["method"],
        round(pruned, 2),
        round(dense - pruned, 2),
        round(run["metrics"]["seconds"], 3),
    )


def _layer_row(layer: Mapping[str, Any]) -> tuple[str, str, int, str, float | None]:
    shape = "×".join(map(str, layer["shape"]))
    error = None if layer["relative_error"] is None else round(layer["relative_error"], 4)
    return layer["name"], shape, layer["nonzeros"], f"{100 * layer['sparsity']:.2f} %", error
