"""The subject of a cell: a trained network on its device with its data, loaded once and warmed up.

What a process pays once (loading kernels, making handles and workspaces) is paid in `warm_up`, by pruning on a
few rows, and not in the first cell that happens to be timed.
"""

import contextlib
import functools
import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.engine.prune import prune
from feta.errors import ConfigError
from feta.tuning.refine import refine
from feta.tuning.retrain import retrain
from feta_lab import data as datasets
from feta_lab.data import DataSet
from feta_lab.experiments.plan import Plan, parse_method
from feta_lab.experiments.workers import Cell
from feta_lab.experiments.zoo import trained
from feta_lab.judge import judge

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
    def fields(self) -> dict[str, Any]:
        """What every record of a cell with this subject says."""
        dense = {"dense_accuracy": self.dense["test"], "dense_validation": self.dense["validation"]}
        return {"data": self.data.label, **dense}

    def scores(self, model: nn.Module) -> dict[str, float]:
        """The fields of a record that judge a network made of the subject's."""
        found = judge(model, self.data, self.images.device)
        return {"accuracy": found["test"], "validation": found["validation"]}


def subject_of(plan: Plan, cell: Cell) -> Subject:
    """The subject that a cell names; the one before is let go, as cells come network by network."""
    return _subject(cell["net"], cell["seed"], plan.networks, *plan.source.items())


@functools.lru_cache(maxsize=1)
def _subject(net: str, seed: int, folder: Path, *source: tuple[str, Any]) -> Subject:
    where = dict(source)
    network, device = trained(net, seed, folder, **where), where["device"]
    found = load_data(network.info.data, where["data_dir"])
    data, model = replace(found, normalisation=network.info.normalisation), network.model.to(device)
    images = data.normalisation.apply(data.train.images, device)
    return Subject(model, data, images, data.train.labels.to(device), judge(model, data, device))


@functools.lru_cache(maxsize=1)
def load_data(name: str, data_dir: Path | None) -> DataSet:
    """A data set, kept for the next network that needs it."""
    return datasets.load(name, data_dir)


def settle() -> None:
    """Collect garbage now, and keep what is left out of later rounds: none of them falls into a timed cell."""
    gc.unfreeze()  # what the cells before have left
    gc.collect()
    gc.freeze()


@functools.lru_cache(maxsize=1)
def warm_up(subject: Subject) -> None:
    """Prune, refine and retrain a subject once, on a few rows."""
    few, device = (subject.images[:WARM_ROWS], subject.labels[:WARM_ROWS]), str(subject.images.device)
    small = prune(subject.model, few[0], 0.9, "wanda", device=device)
    refine(small.model, subject.model, few[0], masks=small.masks, passes=1, device=device)
    retrain(small.model, few, masks=small.masks, validation=few, max_epochs=1, device=device)


@functools.cache
def warm_up_method(method: str, device: str) -> None:
    """Prune a toy network: every library call of the method is made once, at next to no cost."""
    toy = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))
    name, options = parse_method(method)
    rows = torch.randn(WARM_ROWS, 32, generator=torch.Generator().manual_seed(0)).to(device)
    with contextlib.suppress(ConfigError):  # an option that the toy does not suit: the cell itself will say so
        prune(toy.to(device), rows, 0.5, name, options=options, device=device)
