"""The demo: the paper's main job on the embedded digits. Train, prune at several sparsities, show.

The page and the picture are functions of the records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feta.lab import data as datasets
from feta.lab import networks, page, store
from feta.lab.jobs import prune_network
from feta.lab.records import append, record
from feta.lab.training import Training, train

SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
SHOWN = 0.9


def run_demo(
    folder: Path, *, seed: int = 0, tell: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Train dense-mnist on mnist-mini, prune it, write networks, records and page; the records."""
    preset = networks.preset("dense-mnist")
    data = datasets.load("mnist-mini")
    tell(f"training {preset.specification} on {data.label}")
    network = train(preset.specification, data, Training(seed=seed), preset=preset.name)
    dense_bytes = store.save(network, folder / "dense.safetensors")
    runs = []
    for sparsity in SPARSITIES:
        tell(f"pruning to {100 * sparsity:g} %")
        pruned, summary = prune_network(network, data, sparsity, "threshold", seed=seed)
        summary["file_bytes"] = {"dense": dense_bytes, "pruned": len(store.encode(pruned))}
        if sparsity == SHOWN:
            store.save(pruned, folder / "pruned.safetensors")
        config = {
            "network": preset.specification,
            "data": data.label,
            "method": "threshold",
            "sparsity": sparsity,
        }
        runs.append(record("demo", config, seed, summary))
        append(folder / "records.jsonl", runs[-1])
    page.write(folder / "report.html", demo_page(runs))
    return runs


def accuracy_chart(runs: Sequence[Mapping[str, Any]]) -> page.LineChart:
    """Test accuracy against sparsity, one line per method, and the dense network's."""
    dense = runs[0]["metrics"]["accuracy"]["dense"]["test"] / 100
    names = list(dict.fromkeys(run["config"]["method"] for run in runs))
    lines = [
        page.Series(
            "dense network",
            tuple(page.Point(100 * s, dense) for s in (SPARSITIES[0], SPARSITIES[-1])),
            dashed=True,
        )
    ]
    for name in names:
        points = tuple(
            page.Point(100 * run["config"]["sparsity"], run["metrics"]["accuracy"]["pruned"]["test"] / 100)
            for run in runs
            if run["config"]["method"] == name
        )
        lines.append(page.Series(name, points))
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
    shown = next(run["metrics"] for run in runs if run["config"]["sparsity"] == SHOWN)
    files, accuracy = shown["file_bytes"], shown["accuracy"]
    layers = tuple(
        (
            layer["name"],
            "×".join(map(str, layer["shape"])),
            layer["nonzeros"],
            f"{100 * layer['sparsity']:.2f} %",
            layer["relative_error"],
        )
        for layer in shown["layers"]
    )
    blocks: list[page.Block] = [
        page.Facts(
            (
                ("weights removed from the hidden layers", f"{100 * shown['sparsity']:.1f} %"),
                ("test accuracy, dense", f"{accuracy['dense']['test']:.2f} %"),
                ("test accuracy, pruned", f"{accuracy['pruned']['test']:.2f} %"),
                ("file size", f"{files['dense'] / 1e3:.0f} → {files['pruned'] / 1e3:.0f} kB"),
            )
        ),
        accuracy_chart(runs),
        page.Table(
            f"Layers at {100 * SHOWN:g} %",
            ("layer", "shape", "non-zeros", "sparsity", "relative output error"),
            layers,
        ),
    ]
    config = runs[0]["config"]
    subtitle = f"{config['network']} trained on {config['data']}, hidden layers pruned without retraining"
    return page.render("feta demo", subtitle, blocks, runs[0]["environment"])
