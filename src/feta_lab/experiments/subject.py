"""The subjects of experiments: each network is trained once, kept as a file, and found again with its data."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.errors import FetaError
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.data import DataSet
from feta_lab.experiments.harness import Cell, nothing, run_in_workers
from feta_lab.judge import judge
from feta_lab.training import Training, train


@dataclass(frozen=True)
class Source:
    """How a missing network is trained."""

    data: str | None = None  # instead of the preset's own
    data_dir: Path | None = None
    device: str = "cpu"
    epochs: int | None = None  # at the most; by default as in the paper


USUAL = Source()


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


@functools.lru_cache(maxsize=1)
def subject_of(net: str, seed: int, folder: Path, source: Source) -> Subject:
    """The subject of a preset and seed; the one before is let go, as cells come network by network."""
    network, device = trained(net, seed, folder, source), source.device
    found = load_data(network.info.data, source.data_dir)
    data, model = replace(found, normalisation=network.info.normalisation), network.model.to(device)
    images = data.normalisation.apply(data.train.images, device)
    return Subject(model, data, images, data.train.labels.to(device), judge(model, data, device))


@functools.lru_cache(maxsize=1)
def load_data(name: str, data_dir: Path | None) -> DataSet:
    """A data set, kept for the next network that needs it."""
    return datasets.load(name, data_dir)


def network_path(folder: Path, preset: str, seed: int, data: str | None = None) -> Path:
    """Where a network is kept; one trained on another data set than the preset's own has a name of its own."""
    other = "" if data in (None, networks.preset(preset).data) else f"-{data}"
    return folder / f"{preset}{other}-seed{seed}.safetensors"


def trained(preset: str, seed: int, folder: Path, source: Source = USUAL) -> store.Network:
    """The network of a preset and seed, from its file or trained now."""
    path = network_path(folder, preset, seed, source.data)
    if path.exists():
        return store.load(path)
    known = networks.preset(preset)
    loaded = datasets.load(source.data or known.data, source.data_dir)
    partial = path.with_name(path.name + ".partial")
    settings = Training(seed=seed, max_epochs=source.epochs or Training.max_epochs)
    network = train(known.specification, loaded, settings, preset=preset, device=source.device, checkpoint=partial)
    store.save(network, path)
    partial.unlink(missing_ok=True)
    return network


def train_missing(
    presets: Sequence[str], seeds: Sequence[int], folder: Path, source: Source, jobs: int, tell: Callable[[str], None]
) -> None:
    """Train the networks that are not in the folder yet, `jobs` at a time; `tell` gets a line on each.

    Raises FetaError when a network cannot be trained.
    """
    wanted: list[Cell] = [{"preset": preset, "seed": seed} for preset in presets for seed in seeds]
    missing = [cell for cell in wanted if not network_path(folder, **cell, data=source.data).exists()]
    one = functools.partial(_train_one, folder=folder, source=source)
    for index, outcome in run_in_workers(missing, one, nothing, jobs=jobs):
        name = "{preset} seed {seed}".format(**missing[index])
        if outcome.failure:
            raise FetaError(f"cannot train {name}: {outcome.reason}")
        tell("trained {}: {test:.2f} % test, {epochs} epochs, {seconds:.1f} s".format(name, **outcome.fields))


def _train_one(cell: Cell, folder: Path, source: Source) -> Mapping[str, Any]:
    started = time.perf_counter()
    torch.set_num_threads(1)
    info = trained(**cell, folder=folder, source=source).info
    return {"seconds": time.perf_counter() - started, "epochs": info.epochs, "test": info.accuracy["test"]}
