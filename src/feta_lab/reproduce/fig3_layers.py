"""Figures 3a and 3b: one layer at a time is pruned by thresholding, every other layer stays as it was.

A record per network, layer and sparsity: `depth` counts layers from the input, the softmax layer is the one that
is never pruned. Beside the accuracy stand two measures of the layer's inputs, by TwoNN over `samples` training
images, to see whether they tell a layer's safe sparsity better than its depth does:

    intrinsic_dimension        of its rows: one patch per image, drawn at random, for a convolution
    intrinsic_dimension_maps   of its whole input
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.engine.prune import prune
from feta.layers import LayerView, prunable_names
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.data import DataSet
from feta_lab.ensemble import Sprint, train_together
from feta_lab.experiments import Record
from feta_lab.judge import accuracy, judge
from feta_lab.reproduce.curves import curves
from feta_lab.reproduce.dimensions import dimension_of, layer_inputs
from feta_lab.reproduce.experiment import Experiment, Table, Tell, train_networks
from feta_lab.reproduce.plan import Plan
from feta_lab.workers import Cell
from feta_lab.zoo import network_path, trained

SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
KEY_FIELDS = ("net", "seed", "layer", "sparsity", "samples", "epochs", "data_name")


@dataclass(frozen=True)
class Fig3Layers(Plan):
    """The networks, the sparsities, and how many images the inputs of a layer are measured on."""

    nets: tuple[str, ...] = ("conv-mnist",)
    sparsity: tuple[float, ...] = SPARSITIES
    samples: int = 2000
    epochs: int | None = None  # train missing networks by the short recipe; by default as in the paper
    out: Path = Path("results/fig3a")


@dataclass(frozen=True)
class Fig3b(Fig3Layers):
    """The same for CIFAR-10."""

    nets: tuple[str, ...] = ("conv-cifar",)
    out: Path = Path("results/fig3b")


def cells(plan: Fig3Layers) -> list[Cell]:
    """Sparsities innermost: what is measured once per layer is kept for them."""
    return [
        {
            "net": net,
            "seed": seed,
            "layer": layer,
            "depth": depth,
            "layers": len(hidden),
            "sparsity": share,
            "samples": plan.samples,
            "epochs": plan.epochs,
            "data_name": plan.data_of(net),
            "device": plan.where,
        }
        for net in plan.nets
        for hidden in [hidden_layers(net)]
        for seed in range(plan.seeds)
        for depth, layer in enumerate(hidden, start=1)
        for share in plan.sparsity
    ]


def hidden_layers(net: str) -> list[str]:
    """Convolutions and fully connected layers of a preset, without the softmax layer."""
    # The names do not depend on the size of the images, which is known only once data is read.
    return prunable_names(networks.build(networks.preset(net).specification, (1, 32, 32), seed=0))[:-1]


def train(plan: Fig3Layers, tell: Tell) -> None:
    """Train the networks that are not there yet: as in the paper, or together by the short recipe."""
    if plan.epochs is None:
        train_networks(plan, tell)
        return
    for net in plan.nets:
        paths = {seed: network_path(plan.networks, net, seed, plan.data) for seed in range(plan.seeds)}
        missing = [seed for seed, path in paths.items() if not path.exists()]
        if not missing:
            continue
        tell(f"training {len(missing)} of {net}")
        preset, data = networks.preset(net), datasets.load(plan.data_of(net), plan.data_dir)
        images = data.normalisation.apply(data.train.images, plan.where)
        recipe = Sprint(epochs=plan.epochs)
        models = train_together(preset.specification, images, data.train.labels, missing, recipe)
        for seed, model in zip(missing, models, strict=True):
            scores = judge(model, data, plan.where)
            info = store.NetworkInfo(
                preset.specification,
                data.shape,
                data.name,
                data.normalisation,
                net,
                seed,
                plan.epochs,
                scores,
            )
            store.save(store.Network(model.cpu(), info), paths[seed])


def prepare(plan: Fig3Layers, cell: Cell) -> Mapping[str, Any]:
    """Load the network and measure the inputs of the layer."""
    subject = _subject(plan, cell["net"], cell["seed"])
    rows, maps = _dimensions(plan, cell["net"], cell["seed"], cell["layer"])
    return {
        "data": subject.data.label,
        "dense_accuracy": subject.dense,
        "weights": LayerView(subject.model.get_submodule(cell["layer"]), cell["layer"]).weight.numel(),
        "intrinsic_dimension": rows,
        "intrinsic_dimension_maps": maps,
    }


def run_one(plan: Fig3Layers, cell: Cell) -> Mapping[str, Any]:
    """Threshold the layer, judge the network."""
    subject = _subject(plan, cell["net"], cell["seed"])
    result = prune(
        subject.model,
        subject.sample,
        cell["sparsity"],
        "threshold",
        layers=[cell["layer"]],
        device=plan.where,
    )
    (report,) = result.report.layers
    return {
        "accuracy": accuracy(result.model, subject.test, subject.data.test.labels),
        "relative_error": report.relative_error,
        "nonzeros": report.nonzeros,
    }


@dataclass(frozen=True, eq=False)
class _Subject:
    model: nn.Module
    data: DataSet
    sample: Tensor  # training images, normalised, on the device
    test: Tensor
    dense: float  # test accuracy


@functools.lru_cache(maxsize=1)
def _subject(plan: Fig3Layers, net: str, seed: int) -> _Subject:
    network = trained(net, seed, plan.networks, data=plan.data, data_dir=plan.data_dir, device=plan.where)
    data = _data(network.info.data, plan.data_dir)
    model = network.model.to(plan.where)
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[: plan.samples]
    sample = data.normalisation.apply(data.train.images[chosen], plan.where)
    test = data.normalisation.apply(data.test.images, plan.where)
    return _Subject(model, data, sample, test, accuracy(model, test, data.test.labels))


@functools.lru_cache(maxsize=1)
def _data(name: str, data_dir: Path | None) -> DataSet:
    return datasets.load(name, data_dir)


@functools.lru_cache(maxsize=1)
def _dimensions(plan: Fig3Layers, net: str, seed: int, layer: str) -> tuple[float | None, float | None]:
    subject = _subject(plan, net, seed)
    rows, maps = layer_inputs(subject.model, layer, subject.sample)
    return dimension_of(rows), dimension_of(maps)


def label(cell: Cell) -> str:
    return f"{cell['net']}, seed {cell['seed']}, {cell['layer']}, {100 * cell['sparsity']:g} %"


def table(records: Sequence[Record]) -> Table:
    """A row per network and layer, a column per sparsity: mean test accuracy over the seeds."""
    return curves(
        "Test accuracy in percent with one layer pruned by thresholding, mean over the seeds",
        records,
        ("net", "depth", "layer"),
        ("dense_accuracy", "intrinsic_dimension"),
    )


QUICK = {
    "nets": ("conv-mnist",),
    "data": "mnist-mini",
    "seeds": 1,
    "sparsity": (0.0, 0.95),
    "samples": 300,
    "epochs": 1,
    "networks": Path("results/quick/networks-short"),
}
COMMON: dict[str, Any] = {
    "key_fields": KEY_FIELDS,
    "cells": cells,
    "prepare": prepare,
    "run_one": run_one,
    "table": table,
    "label": label,
    "timed": False,
    "train": train,
}
FIG3A = Experiment(
    name="fig3a",
    title="Figure 3a: one layer of conv-mnist pruned at a time",
    plan=Fig3Layers,
    quick={**QUICK, "out": Path("results/quick/fig3a")},
    **COMMON,
)
FIG3B = Experiment(
    name="fig3b",
    title="Figure 3b: one layer of conv-cifar pruned at a time",
    plan=Fig3b,
    quick={**QUICK, "out": Path("results/quick/fig3b")},
    **COMMON,
)
