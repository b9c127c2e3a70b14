"""Patterns: test accuracy in N:M and in blocks, by method, on a dense network and on a ResNet; no retraining.

    PYTHONPATH=src python benchmarks/patterns.py --networks NETWORKS --data-dir DATA --models MODELS --cifar CIFAR
    PYTHONPATH=src python benchmarks/patterns.py … --nets dense-fashion --patterns 2:4 --methods wanda    # a try

NETWORKS holds trained networks, such as dense-fashion-seed0.safetensors, and DATA their data sets; MODELS holds
resnet20-cifar10.safetensors, and CIFAR cifar-10-batches-bin/. Needs torch, numpy, scipy and safetensors.

A cell has a record in OUT/records.jsonl and is not run again. Layers are those of the default choice, with uniform
shares and nothing after the method; an effort (fast, default, best) in the place of a method is the whole recipe.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from measure import measured_prune
from origin import origin
from recipes import rows_of
from resnet import calibration_images, images_of, load_resnet
from torch import Tensor, nn

import feta
from feta.patterns import parse_pattern
from feta_lab.experiments.harness import Cell, label, run_cells
from feta_lab.experiments.subject import Source, subject_of
from feta_lab.judge import accuracy


class Asked(argparse.Namespace):
    """What was asked for; known by itself, so that networks can be kept."""

    __hash__ = object.__hash__


METHODS = ("threshold", "wanda", "sparsegpt", "alps", "feta")
PATTERNS = ("2:4", "1:4", "4x1", "1x4")
SHARE = 0.75  # of zeros, for patterns that do not say it


Judge = Callable[[nn.Module], float]


@functools.lru_cache(maxsize=1)
def network_of(net: str, rows: int, seed: int, asked: argparse.Namespace) -> tuple[nn.Module, Tensor, Judge, float]:
    """The network, its calibration rows, what judges a network like it, and what that says of it."""
    if net.startswith("resnet-"):
        model: nn.Module = load_resnet(int(net.removeprefix("resnet-")), asked.models).to(asked.device)
        images, labels = (found.to(asked.device) for found in images_of("test_batch.bin", asked.cifar))
        found = calibration_images(asked.cifar, rows, seed).to(asked.device)
        judge: Judge = functools.partial(accuracy, images=images[: asked.limit], labels=labels[: asked.limit])
    else:
        subject = subject_of(net, seed, asked.networks, Source(None, asked.data_dir, asked.device))
        model, found = subject.model, rows_of(subject.images, rows, seed)
        judge = lambda pruned: subject.scores(pruned)["accuracy"]  # noqa: E731
    return model, found, judge, judge(model)


def run(asked: argparse.Namespace, cell: Cell) -> Mapping[str, Any]:
    """Prune and judge."""
    model, rows, judge, dense = network_of(cell["net"], cell["rows"], cell["seed"], asked)
    form = parse_pattern(cell["pattern"])
    share = SHARE if form is None or form.share is None else float(form.share)
    how = {"pattern": cell["pattern"], "seed": cell["seed"], "settings": feta.Settings(reorder=cell["reorder"])}
    pruned, found = measured_prune(model, rows, cell["method"], share, **how)
    scores = {"accuracy": judge(pruned), "dense": dense}
    print(f"{label(cell)}: {scores['accuracy']:.2f} of {scores['dense']:.2f} %, {found['seconds']:.1f} s", flush=True)
    return {**found, **scores}


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """A table for each network."""
    return "\n\n".join(
        [*(table(records, net) for net in dict.fromkeys(one["net"] for one in records)), origin(records)]
    )


def reordered(records: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy with the inputs where they are, and with inputs reordered, of each method and pattern."""
    cells = {(r["net"], r["method"], r["pattern"], r["key"]["reorder"]): f"{r['accuracy']:.2f}" for r in records}
    forms = list(dict.fromkeys(one["pattern"] for one in records))
    lines = [f"| as they are → reordered | {' | '.join(forms)} |", "| --- " * (1 + len(forms)) + "|"]
    for net, method in dict.fromkeys((one["net"], one["method"]) for one in records):
        pairs = (" → ".join(cells[net, method, form, moved] for moved in (False, True)) for form in forms)
        lines.append(f"| {net}, {method} | {' | '.join(pairs)} |")
    return "\n".join([*lines, "", origin(records)])


def table(records: Sequence[Mapping[str, Any]], net: str) -> str:
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
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--jobs", type=int, default=1, help="cells at once; their seconds do not compare then")
    ask.add_argument("--limit", type=int, help="test images of a ResNet; all by default")
    ask.add_argument("--no-reorder", dest="reorder", action="store_false", help="inputs stay where they are")
    ask.add_argument("--out", type=Path, default=Path("results/patterns"))
    asked = ask.parse_args(words, Asked())
    grid = product(asked.nets, asked.patterns, asked.methods)
    same = {
        "rows": asked.rows,
        "seed": asked.seed,
        "limit": asked.limit,
        "device": asked.device,
        "reorder": asked.reorder,
    }
    cells = [{"net": net, "pattern": pattern, "method": method, **same} for net, pattern, method in grid]
    run_one = functools.partial(run, asked)
    records, how = asked.out / "records.jsonl", {"tell": print, "jobs": asked.jobs}
    found = run_cells("patterns", cells, run_one, records, **how)
    for net in asked.nets:
        print(table(found, net))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
