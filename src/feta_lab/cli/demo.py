"""feta demo: the main job on embedded data, with a page to look at."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import err, out, print_table, size
from feta.cli.options import Seed


def demo(
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="Folder for the results.")] = Path("demo"),
    seed: Seed = 0,
) -> None:
    """Train the paper's dense MNIST network on embedded digits, prune it, write a page; no network needed.

    Args:
        seed: Weights and order of the samples follow from it.
    """
    from feta_lab.demo import run_demo

    with err().status("starting") as status:
        runs = run_demo(output, seed=seed, tell=status.update)
    rows = []
    for run in runs:
        metrics, files = run["metrics"], run["metrics"]["file_bytes"]
        share, accuracy = f"{100 * metrics['sparsity']:.2f} %", f"{metrics['accuracy']['pruned']['test']:.2f} %"
        nonzeros = sum(layer["nonzeros"] for layer in metrics["layers"])
        file = f"{size(files['pruned'])} ({files['dense'] / files['pruned']:.1f}×)"
        effort = run["config"]["effort"]
        name = run["config"]["method"] if effort is None else f"effort {effort}"
        rows.append((name, share, nonzeros, accuracy, file, f"{metrics['seconds']:.2f}"))
    dense = runs[0]["metrics"]["accuracy"]["dense"]["test"]
    title = f"{runs[0]['config']['network']}, {dense:.2f} % test accuracy before pruning"
    print_table(title, ("method", "sparsity", "non-zeros", "test accuracy", "file", "seconds"), rows)
    for name in ("report.html", "accuracy.png"):
        out().print(f"written: {output / name}")
    out().print(f"see how much faster it runs: feta speed {output / 'pruned.safetensors'}")
