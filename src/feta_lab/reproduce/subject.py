"""The subject of a cell: a trained network on its device with its data, loaded once and warmed up.

What a process pays once (kernels loaded, handles and workspaces made) is paid here, by pruning on a few rows,
and not in the first cell that happens to be timed. Nor does a cell pay for the garbage of those before it.
"""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.engine.prune import prune
from feta.errors import ConfigError
from feta.pruners import make
from feta.report import PruneReport
from feta.tuning.refine import refine
from feta.tuning.retrain import retrain
from feta_lab import data as datasets
from feta_lab.bench import parse_method
from feta_lab.data import DataSet
from feta_lab.judge import judge
from feta_lab.reproduce import kept
from feta_lab.reproduce.kept import Pruned
from feta_lab.reproduce.plan import Plan, PruningPlan
from feta_lab.workers import Cell
from feta_lab.zoo import trained

WARM_ROWS = 256


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network and its data, on the device."""

    model: nn.Module
    data: DataSet
    images: Tensor  # training images, normalised
    labels: Tensor
    dense: dict[str, float]  # what the judge says of it

    @property
    def validation(self) -> tuple[Tensor, Tensor]:
        split, device = self.data.validation, self.images.device
        return self.data.normalisation.apply(split.images, device), split.labels.to(device)


def subject_of(plan: Plan, cell: Cell) -> Subject:
    return _subject(cell["net"], cell["seed"], plan.data, plan.networks, plan.data_dir, plan.where)


def prepare(plan: Plan, cell: Cell) -> Mapping[str, Any]:
    """Load the network, warm the method up, and say what holds for every method."""
    subject = subject_of(plan, cell)
    warm_up(cell["method"], plan.where)
    settle()
    return {
        "data": subject.data.label,
        "dense_accuracy": subject.dense["test"],
        "dense_validation": subject.dense["validation"],
    }


def pruned(plan: PruningPlan, cell: Cell) -> Pruned:
    """The subject pruned as the cell says, compensation off as in the paper; from `plan.keep` if it is there."""
    subject = subject_of(plan, cell)
    found = None if plan.keep is None else kept.find(plan.keep, cell, subject.dense, subject.model)
    if found is not None:
        return found
    method, options = parse_method(cell["method"])
    on_gpu = subject.images.is_cuda and make(method, options).needs.passes == "many"
    result = prune(
        subject.model,
        subject.images,
        cell["sparsity"],
        method,
        options=options,
        compensate=False,
        n_samples=cell["samples"],
        seed=cell["seed"],
        device=plan.where,
        cache="memory" if on_gpu else "auto",  # hundreds of passes: rows must not come from disk each time
    )
    answer = Pruned(result.model, result.masks, _fields(result.report))
    if plan.keep is not None:
        kept.keep(plan.keep, cell, subject.dense, answer)
    return answer


def _fields(report: PruneReport) -> dict[str, Any]:
    return {
        "prune_seconds": report.seconds,
        "relative_error": [layer.relative_error for layer in report.layers],
        "status": [layer.status for layer in report.layers],
        "nonzeros": [layer.nonzeros for layer in report.layers],
        "options": report.options,
    }


@functools.lru_cache(maxsize=1)
def _subject(
    net: str, seed: int, data: str | None, folder: Path, data_dir: Path | None, device: str
) -> Subject:
    network = trained(net, seed, folder, data=data, data_dir=data_dir, device=device)
    loaded, images, labels = _data(network.info.data, data_dir, device)
    model = network.model.to(device)
    few = (images[:WARM_ROWS], labels[:WARM_ROWS])
    small = prune(model, few[0], 0.9, "wanda", device=device)
    refine(small.model, model, few[0], masks=small.masks, passes=1, device=device)
    retrain(small.model, few, masks=small.masks, validation=few, max_epochs=1, device=device)
    return Subject(model, loaded, images, labels, judge(model, loaded, device))


@functools.lru_cache(maxsize=1)
def _data(name: str, data_dir: Path | None, device: str) -> tuple[DataSet, Tensor, Tensor]:
    data = datasets.load(name, data_dir)
    return data, data.normalisation.apply(data.train.images, device), data.train.labels.to(device)


def settle() -> None:
    """Collect garbage now and keep what is left out of later rounds: none of it falls into a timed cell by chance."""
    gc.unfreeze()  # what the cells before have left
    gc.collect()
    gc.freeze()


@functools.cache
def warm_up(method: str, device: str) -> None:
    """Prune a toy network: every library call of the method is made once, at no cost to speak of."""
    toy = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))
    generator = torch.Generator().manual_seed(0)
    name, options = parse_method(method)
    rows = torch.randn(WARM_ROWS, 32, generator=generator).to(device)
    try:
        prune(copy.deepcopy(toy).to(device), rows, 0.5, name, options=options, device=device)
    except ConfigError:  # an option the toy does not suit; the cell itself will say what it has to say
        return
