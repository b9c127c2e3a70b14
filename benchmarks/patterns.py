"""Patterns: test accuracy in N:M and in blocks, by method, on a dense network and on a ResNet; no retraining.

    PYTHONPATH=src python benchmarks/patterns.py --networks NETWORKS --data-dir DATA --models MODELS --cifar CIFAR
    PYTHONPATH=src python benchmarks/patterns.py … --nets dense-fashion --patterns 2:4 --methods wanda    # a try

NETWORKS holds trained networks, such as dense-fashion-seed0.safetensors, and DATA their data sets; MODELS holds
resnet20-cifar10.safetensors, and CIFAR cifar-10-batches-bin/. Needs torch, numpy, scipy and safetensors.

A cell has a record in OUT/records.jsonl and is not run again. Layers are those of the default choice, with uniform
shares and nothing after the method; an effort (fast, default, best) in the place of a method is the whole recipe.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from measure import measured_prune
from recipes import rows_of
from resnet import calibration_images, images_of, load_resnet
from torch import Tensor, nn

from feta.patterns import parse_pattern
from feta_lab.experiments.harness import Cell, label, run_cells
from feta_lab.experiments.subject import Source, subject_of
from feta_lab.judge import accuracy

METHODS = ("threshold", "wanda", "sparsegpt", "alps", "feta")
PATTERNS = ("2:4", "1:4", "4x1", "1x4")
SHARE = 0.75  # of zeros, for patterns that do not say it


def network_of(cell: Cell, asked: argparse.Namespace) -> tuple[nn.Module, Tensor, Callable[[nn.Module], float]]:
    """The network, its calibration rows, and what judges a network like it."""
    if cell["net"].startswith("resnet-"):
        model = load_resnet(int(cell["net"].removeprefix("resnet-")), asked.models)
        rows = calibration_images(asked.cifar, cell["rows"], cell["seed"])
        images, labels = images_of("test_batch.bin", asked.cifar)
        return model, rows, lambda pruned: accuracy(pruned, images, labels)
    subject = subject_of(cell["net"], cell["seed"], asked.networks, Source(None, asked.data_dir, "cpu"))
    rows = rows_of(subject.images, cell["rows"], cell["seed"])
    return subject.model, rows, lambda pruned: subject.scores(pruned)["accuracy"]


def run(asked: argparse.Namespace, cell: Cell) -> Mapping[str, Any]:
    """Prune and judge."""
    model, rows, judge = network_of(cell, asked)
    form = parse_pattern(cell["pattern"])
    share = SHARE if form is None or form.share is None else float(form.share)
    pruned, found = measured_prune(model, rows, cell["method"], share, pattern=cell["pattern"], seed=cell["seed"])
    scores = {"accuracy": judge(pruned), "dense": judge(model)}
    print(f"{label(cell)}: {scores['accuracy']:.2f} of {scores['dense']:.2f} %, {found['seconds']:.1f} s", flush=True)
    return {**found, **scores}


def table(records: list[Mapping[str, Any]], net: str) -> str:
    """Accuracy in Markdown: a line for each method, a column for each pattern."""
    cells = {(r["method"], r["pattern"]): r for r in records if r["net"] == net and "accuracy" in r}
    methods, patterns = (list(dict.fromkeys(key[i] for key in cells)) for i in range(2))
    dense = next(iter(cells.values()))["dense"]
    lines = [f"| {net}, dense {dense:.2f} | {' | '.join(map(str, patterns))} |", "| --- " * (1 + len(patterns)) + "|"]
    for method in methods:
        found = (cells.get((method, pattern)) for pattern in patterns)
        lines.append(
            " | ".join([f"| {method}", *("" if r is None else f"{r['accuracy']:.2f}" for r in found)]) + " |"
        )
    return "\n".join(lines)


def main(words: list[str]) -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("networks", "results/networks"), ("data-dir", None), ("models", None), ("cifar", None)):
        ask.add_argument(f"--{name}", type=Path, default=default)
    for name, several in (("nets", ("dense-fashion", "resnet-20")), ("methods", METHODS), ("patterns", PATTERNS)):
        ask.add_argument(f"--{name}", type=lambda text: tuple(text.split(",")), default=several)
    ask.add_argument("--rows", type=int, default=1000)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--out", type=Path, default=Path("results/patterns"))
    asked = ask.parse_args(words)
    grid = product(asked.nets, asked.patterns, asked.methods)
    same = {"rows": asked.rows, "seed": asked.seed, "device": "cpu"}
    cells = [{"net": net, "pattern": pattern, "method": method, **same} for net, pattern, method in grid]
    run_one = functools.partial(run, asked)
    found = run_cells("patterns", cells, run_one, asked.out / "records.jsonl", prepare=lambda cell: {}, tell=print)
    for net in asked.nets:
        print(table(found, net))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
