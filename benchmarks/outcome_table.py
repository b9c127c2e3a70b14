"""The README's table of what a user gets: accuracy, bytes and milliseconds of three networks; see docs/figures.py.

Scores are those of `effort="default"` in results/recipes and results/real, bytes those of results/files
(`benchmarks/files.py`), milliseconds those of results/speed (`benchmarks/speed.py`), one sample or token, one thread.
"""

import statistics
from collections.abc import Callable

from feta_lab.records import Record

Records = Callable[[str], list[Record]]  # of a folder under results/
# what it is called, its zeros, and its names in the records of scores, files and speed
NETWORKS = (
    ("MLP 784-300-100-10, MNIST, accuracy", 0.95, "dense-mnist-wide", "dense-mnist-wide", "mlp 784-300-100-10"),
    ("ResNet-20, CIFAR-10 (JPEG copy), accuracy", 0.8, "resnet-20", "resnet20", "ResNet-20"),
    ("", 0.9, "resnet-20", "resnet20", "ResNet-20"),
    ("SmolLM2-135M, WikiText-2, perplexity", 0.5, "smollm2-135m", "SmolLM2-135M", "SmolLM2-135M"),
)


def scores(records: Records, net: str, zeros: float) -> tuple[float, float]:
    """Of the dense and of the pruned network, the mean over the runs with all rows there are."""
    runs = [one for one in records("recipes") if one["recipe"] == "default" and one["rows"] == "all"]
    runs += [one for one in records("real") if one["method"] == "default"]
    mine = [one for one in runs if (one["net"], one["sparsity"]) == (net, zeros)]
    name = "accuracy" if "accuracy" in mine[0] else "perplexity"
    return tuple(statistics.mean(one[key] for one in mine) for key in (f"dense_{name}", name))  # type: ignore[return-value]


def file_bytes(records: Records, net: str, zeros: float) -> tuple[int, int]:
    asked = {"net": net, "sparsity": zeros, "method": "threshold"}
    found = next(one for one in records("files") if asked.items() <= one["key"].items())["metrics"]["bytes"]
    return found["plain"], found["small"]


def milliseconds(records: Records, net: str, zeros: float) -> tuple[float, float]:
    asked = {"network": net, "sparsity": zeros, "threads": 1}
    found = next(one for one in records("speed") if asked.items() <= one["key"].items())["metrics"]["batches"]
    first = next(row for row in found if row["batch"] == 1)
    return first["dense_ms"], first["sparse_ms"]


def table(records: Records) -> str:
    heads = ("network, what is judged", "zeros", "dense → pruned", "file, MB", "ms for one, on one CPU thread")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for called, zeros, scored, stored, timed in NETWORKS:
        before, after = scores(records, scored, zeros)
        plain, small = file_bytes(records, stored, zeros)
        dense, sparse = milliseconds(records, timed, zeros)
        bytes_told = f"{plain / 1e6:.3g} → {small / 1e6:.3g} ({100 * small / plain:.0f} %)"
        told = (f"{before:.1f} → {after:.1f}", bytes_told, f"{dense:.2g} → {sparse:.2g} (**{dense / sparse:.1f}×**)")
        lines.append(f"| {called} | {100 * zeros:g} % | {' | '.join(told)} |")
    return "\n".join(lines)
