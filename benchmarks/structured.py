"""Networks rebuilt smaller: feta.shrink against Torch-Pruning's own importances, at equal multiply-adds.

    PYTHONPATH=src python benchmarks/structured.py --networks NETWORKS --data-dir DATA --resnets RESNETS
    PYTHONPATH=src python benchmarks/structured.py --nets dense-fashion --shares 0.5 --networks NETWORKS    # a try

A choice says which channels go: magnitude (L2 over a group) or taylor (weight times gradient of the cross-entropy on
the true labels of the same rows), both as Torch-Pruning computes them, with the same share of each layer or ranked
over all layers; or feta, with the same share of each layer or by errors. What comes after: `cut`, nothing; `refit`,
the layers behind refitted by feta; `fit`, then the whole network fitted to the original's outputs for --seconds.

Needs torch-pruning. A cell has a record in OUT/records.jsonl and is not run again.
"""

import argparse
import copy
import functools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_pruning
from measure import shares, tell, words
from resnet import data_label, images_of, load_resnet
from torch import Tensor, nn
from torch.nn import functional as F

import feta
from feta.engine.run import Run
from feta.structured.groups import Group, cut, find_groups, graph_of
from feta.structured.widths import Layer, Widths
from feta_lab.experiments.harness import Cell, label, run_cells
from feta_lab.experiments.subject import Source, subject_of
from feta_lab.judge import accuracy

NETS, SHARES = ("dense-fashion", "resnet20", "conv-cifar"), (0.5, 0.7)
RIVALS = ("magnitude-uniform", "magnitude-global", "taylor-uniform", "taylor-global")
OURS = ("feta-uniform", "feta-error")


class Subject(NamedTuple):
    model: nn.Module
    images: Tensor  # that networks are shrunk with
    labels: Tensor
    test: tuple[Tensor, Tensor]
    data: str


def main(words: list[str]) -> int:
    given = parser().parse_args(words)
    afters = [(choice, after) for choice in given.choices for after in given.after]
    kinds = [(choice, after) for choice, after in afters if not (choice in OURS and after == "cut")]
    common = {"rows": given.rows, "device": given.device}
    cells = [
        dict(common, net=net, seed=seed, share=share, choice=choice, after=after)
        for net in given.nets
        for seed in range(1 if net.startswith("resnet") else given.seeds)
        for share in given.shares
        for choice, after in kinds
    ]
    work = functools.partial(run, given)
    records = given.out / "records.jsonl"
    run_cells("structured", cells, work, records, prepare=functools.partial(prepare, given), jobs=given.jobs)
    return 0


def prepare(given: argparse.Namespace, cell: Cell) -> Mapping[str, Any]:
    subject = subject_for(given, cell)
    return {"data": subject.data, "dense_accuracy": dense_accuracy(subject), "fit_seconds": given.seconds}


@functools.lru_cache(maxsize=1)
def dense_accuracy(subject: Subject) -> float:
    return accuracy(subject.model, *subject.test)


def run(given: argparse.Namespace, cell: Cell) -> Mapping[str, Any]:
    subject, (choice, _, spread) = subject_for(given, cell), cell["choice"].partition("-")
    how: dict[str, Any] = {"effort": "default" if cell["after"] == "fit" else "fast", "seed": cell["seed"]}
    if cell["after"] == "fit":
        how["seconds"] = given.seconds
    started = time.perf_counter()
    if choice == "feta":
        small = feta.shrink(subject.model, subject.images, cell["share"], allocation=spread, **how).model
    else:
        groups, widths = groups_of(subject.model, subject.images)
        scores = scores_of(choice, subject, groups)
        gone = lowest(scores, widths, cell["share"], spread)
        if cell["after"] == "cut":
            small = cut(subject.model, subject.images[:2], groups, gone)
        else:
            keep = {group.root: rest(group, gone[group.root]) for group in groups}
            small = feta.shrink(subject.model, subject.images, keep=keep, **how).model
    seconds = time.perf_counter() - started
    whole, left = (multiply_adds(network, subject.images[:1]) for network in (subject.model, small))
    found = {
        "accuracy": accuracy(small, *subject.test),
        "removed": 1 - left / whole,
        "multiply_adds": left,
        "parameters": sum(weight.numel() for weight in small.parameters()),
        "seconds": seconds,
    }
    told = f"{found['accuracy']:.2f} %, {100 * found['removed']:.2f} % removed, {seconds:.1f} s"
    tell(f"{label(cell)}, {cell['share']}, {cell['choice']}, {cell['after']}: {told}")
    return found


def subject_for(given: argparse.Namespace, cell: Cell) -> Subject:
    where = given.networks, given.data_dir, given.resnets
    return load_subject(cell["net"], cell["seed"], cell["rows"], cell["device"], *where)


@functools.lru_cache(maxsize=1)
def load_subject(
    net: str, seed: int, rows: int, device: str, networks: Path, data_dir: Path | None, resnets: Path
) -> Subject:
    """A network with rows drawn from its training data, and its test data."""
    model, images, labels, test, data = on_cpu(net, seed, rows, networks, data_dir, resnets)
    return Subject(
        model.to(device), images.to(device), labels.to(device), (test[0].to(device), test[1].to(device)), data
    )


def on_cpu(net: str, seed: int, rows: int, networks: Path, data_dir: Path | None, resnets: Path) -> Subject:
    if net.startswith("resnet"):
        images, labels = images_of("data_batch_1.bin", resnets)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images))[:rows])
        test = images_of("test_batch.bin", resnets)
        return Subject(load_resnet(int(net[6:]), resnets), images[order], labels[order], test, data_label(test[1]))
    subject = subject_of(net, seed, networks, Source(data_dir=data_dir, device="cpu"))
    order = torch.randperm(len(subject.images), generator=torch.Generator().manual_seed(seed))[:rows]
    test = subject.data.normalisation.apply(subject.data.test.images, "cpu"), subject.data.test.labels
    return Subject(subject.model.eval(), subject.images[order], subject.labels[order], test, subject.data.label)


@functools.lru_cache(maxsize=1)
def groups_of(model: nn.Module, images: Tensor) -> tuple[list[Group], Widths]:
    """What can be removed, the same for everyone."""
    run_ = Run.start(model, images, feta.Settings())
    groups, _ = find_groups(run_.original, images[:2], run_.layers)
    return groups, Widths([Layer.of(run_.original, trace) for trace in run_.layers], groups)


def scores_of(choice: str, subject: Subject, groups: list[Group]) -> dict[str, Tensor]:
    """Torch-Pruning's importance of every channel of each group."""
    network = copy.deepcopy(subject.model)
    graph = graph_of(network, subject.images[:2])
    measure = torch_pruning.importance.GroupMagnitudeImportance(p=2)
    if choice == "taylor":
        measure = torch_pruning.importance.GroupTaylorImportance()
        for x, y in zip(subject.images.split(100), subject.labels.split(100), strict=True):
            (F.cross_entropy(network(x), y, reduction="sum") / len(subject.images)).backward()
    found = {}
    for group in groups:
        root = network.get_submodule(group.root)
        handler = graph.get_pruner_of_module(root).prune_out_channels
        found[group.root] = measure(graph.get_pruning_group(root, handler, list(range(group.units))))
    return found


def lowest(scores: Mapping[str, Tensor], widths: Widths, share: float, spread: str) -> dict[str, Tensor]:
    """The channels with the lowest scores, as many as the share of the multiply-adds needs."""
    orders = {root: found.argsort(stable=True).cpu() for root, found in scores.items()}
    if spread == "uniform":
        counts = widths.uniform(share)
    else:
        ranked = sorted((float(score), root) for root, found in scores.items() for score in found)
        counts, target = dict.fromkeys(scores, 0), widths.target(share)
        most = {group.root: widths.most(group) for group in widths.groups}
        for _, root in ranked:
            if widths.multiply_adds(counts) <= target:
                break
            counts[root] = min(counts[root] + 1, most[root])
    return {root: orders[root][:count] for root, count in counts.items()}


def rest(group: Group, gone: Tensor) -> list[int]:
    return sorted(set(range(group.units)) - set(gone.tolist()))


@torch.no_grad()
def multiply_adds(model: nn.Module, x: Tensor) -> int:
    """Counted in the network itself: each layer's weights, times the places where they are used."""
    total: list[int] = []

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        total.append(layer.weight.numel() * output.numel() // len(layer.weight))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model(x)
    for hook in hooks:
        hook.remove()
    return sum(total)


def parser() -> argparse.ArgumentParser:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--nets", type=words, default=NETS)
    ask.add_argument("--shares", type=shares, default=SHARES)
    ask.add_argument("--choices", type=words, default=(*RIVALS, *OURS))
    ask.add_argument("--after", type=words, default=("cut", "refit"), help="out of cut,refit,fit")
    ask.add_argument("--rows", type=int, default=1000)
    ask.add_argument("--seeds", type=int, default=3, help="of networks but ResNets")
    ask.add_argument("--seconds", type=float, default=60.0, help="for `fit`, the layers included")
    ask.add_argument("--networks", type=Path, default=Path("results/networks"))
    ask.add_argument("--data-dir", type=Path, default=None)
    ask.add_argument("--resnets", type=Path, default=Path("resnets"), help="with CIFAR-10's binary files beside them")
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--jobs", type=int, default=1, help="cells at once; their seconds do not compare then")
    ask.add_argument("--out", type=Path, default=Path("results/structured"))
    return ask


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
