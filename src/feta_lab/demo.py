"""The demo: the paper's main job on the embedded digits: train, prune by several methods, show.

The page and its figure are functions of the records alone.
"""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feta.cli.subject import prune_subject
from feta.engine.finish import PruneWarning
from feta.files.atomic import check_writable, write_atomic
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.page.blocks import Block, Facts, Shown, Table
from feta_lab.page.document import publish
from feta_lab.page.figure import Figure, LineChart, Point
from feta_lab.records import append, record
from feta_lab.subject import subject_of
from feta_lab.training import Training, train

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
METHODS = ("feta", "threshold", "lobs")
EFFORTS = ("fast", "default")
SHOWN, OURS, HARD = 0.9, "feta", 0.98
Run = Mapping[str, Any]


def run_demo(folder: Path, *, seed: int = 0, tell: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Train dense-mnist on mnist-mini, prune it, and write networks, records, page and figure.

    folder: where the files go.
    seed: of training and pruning.
    tell: called with a line of text before every step.

    Returns the records, one per method and sparsity and one per effort. Raises FileError where the folder cannot be
    written to.
    """
    for name in ("dense.safetensors", "pruned.safetensors", "records.jsonl", "report.html"):
        check_writable(folder / name)
    preset, data = networks.preset("dense-mnist"), datasets.load("mnist-mini")
    tell(f"training {preset.specification} on {data.label}")
    network = train(preset.specification, data, Training(seed=seed), preset=preset.name)
    dense_bytes = store.save(network, folder / "dense.safetensors")
    subject, runs = subject_of(network, data), []
    cells: list[tuple[str, str | None, float]] = [(m, None, s) for m, s in itertools.product(METHODS, SPARSITIES)]
    for method, effort, sparsity in [*cells, *((OURS, effort, HARD) for effort in EFFORTS)]:
        tell(f"{method}{f', effort {effort}' if effort else ''}: pruning to {100 * sparsity:g} %")
        how = {"method": method} if effort is None else {"method": None, "effort": effort}
        with warnings.catch_warnings():  # the page says of each what it lost
            warnings.simplefilter("ignore", PruneWarning)
            model, summary, kept = prune_subject(subject, sparsity, seed=seed, **how)
        content = subject.encode(model, kept, summary["accuracy"]["pruned"])
        summary["file_bytes"] = {"dense": dense_bytes, "pruned": len(content)}
        if (method, effort, sparsity) == (OURS, None, SHOWN):
            write_atomic(folder / "pruned.safetensors", content)
        config = {"network": preset.specification, "data": data.label, "method": method, "sparsity": sparsity}
        config["effort"] = effort
        runs.append(record("demo", config, seed, summary))
        append(folder / "records.jsonl", runs[-1])
    write_demo(folder / "report.html", runs)
    return runs


def accuracy_figure(runs: Sequence[Run]) -> Figure:
    """Test accuracy against sparsity, a line per method, and the dense network's."""
    lines: dict[str, list[Point]] = {}
    for run in (run for run in runs if run["config"].get("effort") is None):
        here = Point(100 * run["config"]["sparsity"], run["metrics"]["accuracy"]["pruned"]["test"])
        lines.setdefault(run["config"]["method"], []).append(here)
    dense, config = runs[0]["metrics"]["accuracy"]["dense"]["test"], runs[0]["config"]
    lines["dense network"] = [Point(point.x, dense) for point in lines[config["method"]]]
    axes = ("zero weights in the hidden layers (%)", "test accuracy (%)")
    chart = LineChart("Test accuracy without retraining", *axes, lines)
    return Figure("accuracy", (chart,), f"{config['network']} on {config['data']}; 5,000 test digits.")


def write_demo(path: Path, runs: Sequence[Run]) -> None:
    """Write the page of a demo's records, and its figure beside it."""
    at = [run for run in runs if run["config"]["sparsity"] == SHOWN]
    efforts = [run for run in runs if run["config"].get("effort")]
    alone = next((run for run in runs if (run["config"]["method"], run["config"]["sparsity"]) == (OURS, HARD)), None)
    efforts = [run for run in (alone, *efforts) if run is not None]
    shown = next(run["metrics"] for run in at if run["config"]["method"] == OURS)
    files, accuracy = shown["file_bytes"], shown["accuracy"]
    headlines = (
        ("weights removed from the hidden layers", f"{100 * shown['sparsity']:.1f} %"),
        ("test accuracy, dense", f"{accuracy['dense']['test']:.2f} %"),
        (f"test accuracy, pruned by {OURS}", f"{accuracy['pruned']['test']:.2f} %"),
        ("file size", f"{files['dense'] / 1e3:.0f} → {files['pruned'] / 1e3:.0f} kB"),
    )
    methods = ("method", "test accuracy (%)", "points lost", "seconds")
    layers = ("layer", "shape", "non-zeros", "sparsity", "relative output error")
    percent, config = f"{100 * SHOWN:g} %", runs[0]["config"]
    blocks: list[Block] = [
        Facts(headlines),
        accuracy_figure(runs),
        Table(f"Methods at {percent}", methods, tuple(map(_method_row, at))),
        Table(f"Layers at {percent}, pruned by {OURS}", layers, tuple(map(_layer_row, shown["layers"]))),
        Table(f"Efforts at {100 * HARD:g} %", ("effort", *methods[1:]), tuple(map(_effort_row, efforts))),
    ]
    subtitle = f"{config['network']} trained on {config['data']}, hidden layers pruned without retraining"
    publish(path, "feta demo", subtitle, blocks, runs[0]["environment"])


def _effort_row(run: Run) -> tuple[str, float, float, float]:
    effort = run["config"].get("effort")
    return (f"effort={effort}" if effort else f"method={OURS} alone", *_method_row(run)[1:])


def _method_row(run: Run) -> tuple[str, float, float, float]:
    dense, pruned = (run["metrics"]["accuracy"][which]["test"] for which in ("dense", "pruned"))
    seconds = round(run["metrics"]["seconds"], 3)
    return run["config"]["method"], round(pruned, 2), round(dense - pruned, 2), seconds


def _layer_row(layer: Mapping[str, Any]) -> tuple[str, str, int, Shown, float | None]:
    shape = "×".join(map(str, layer["shape"]))
    share = Shown(f"{100 * layer['sparsity']:.2f} %", layer["sparsity"])
    error = None if layer["relative_error"] is None else round(layer["relative_error"], 4)
    return layer["name"], shape, layer["nonzeros"], share, error
