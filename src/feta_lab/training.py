"""Training as in Appendix C: SGD with momentum 0.9, learning rate 0.01 with exponential decay, batches
of 32, until validation accuracy saturates, 30 epochs at the most; the best epoch's weights are kept.

The training set is put on the device once and batched by index. Every epoch's order comes from
(seed, epoch) alone, so a run that was killed goes on from its last epoch to the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.errors import ConfigError, FileError, ModelError
from feta.files import sparse_file
from feta.tuning.stepping import GraphedStep, Update, order_of, threads_for
from feta_lab import networks
from feta_lab.data import DataSet
from feta_lab.judge import accuracy
from feta_lab.store import Network, NetworkInfo


@dataclass(frozen=True)
class Training:
    """Hyper-parameters of a training run."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    decay: float = 0.95  # of the learning rate, per epoch
    batch_size: int = 32
    max_epochs: int = 30
    patience: int = 6  # epochs without a better validation accuracy
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "decay", "batch_size", "max_epochs", "patience"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"Training.{name} must be > 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"Training.momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True)
class EpochEvent:
    """Progress, for callbacks."""

    epoch: int
    max_epochs: int
    loss: float
    validation: float
    best: float


def train(
    specification: str,
    data: DataSet,
    settings: Training,
    *,
    preset: str | None = None,
    device: str | torch.device = "cpu",
    checkpoint: Path | None = None,
    callback: Callable[[EpochEvent], None] | None = None,
) -> Network:
    """A trained network, in eval mode on the CPU. With a checkpoint path a killed run resumes from it."""
    where = torch.device(device)
    model = networks.build(specification, data.shape, seed=settings.seed).to(where)
    run = _Run(model, settings)
    fingerprint = _fingerprint(specification, data, settings)
    if checkpoint is not None and checkpoint.exists():
        run.restore(checkpoint, fingerprint)
    images, labels = data.normalisation.apply(data.train.images, where), data.train.labels.to(where)
    held_out = data.normalisation.apply(data.validation.images, where)
    with threads_for(model):
        while run.epoch < settings.max_epochs and run.stale < settings.patience:
            loss = run.one_epoch(images, labels)
            run.note(accuracy(model, held_out, data.validation.labels))
            if checkpoint is not None:
                run.store(checkpoint, fingerprint)
            if callback is not None:
                callback(EpochEvent(run.epoch, settings.max_epochs, loss, run.latest, run.best))
    model.load_state_dict(run.best_weights)
    model = model.to("cpu").eval()
    test = data.normalisation.apply(data.test.images, where)
    scores = {"validation": run.best, "test": accuracy(model.to(where), test, data.test.labels)}
    info = NetworkInfo(
        specification, data.shape, data.name, data.normalisation, preset, settings.seed, run.epoch, scores
    )
    return Network(model.to("cpu"), info)


class _Run:
    """The state of a run: weights, momentum, epoch, and the best weights so far."""

    def __init__(self, model: nn.Module, settings: Training) -> None:
        self.model, self.settings = model, settings
        self.optimiser = torch.optim.SGD(
            model.parameters(), settings.learning_rate, settings.momentum, fused=True
        )
        self.epoch, self.stale, self.best, self.latest = 0, 0, -1.0, -1.0
        self.update = Update(model, self.optimiser, F.cross_entropy)
        self.graphed = GraphedStep(self.update)
        self.best_weights = {name: t.clone() for name, t in model.state_dict().items()}

    def one_epoch(self, images: Tensor, labels: Tensor) -> float:
        """The mean loss over one pass in a random order."""
        settings = self.settings
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * settings.decay**self.epoch
        order = order_of(len(images), settings.seed, self.epoch).to(images.device)
        total = torch.zeros((), device=images.device)
        self.model.train()
        step = self.graphed if images.is_cuda else self.update
        self.graphed.forget()  # the learning rate is part of the record
        for rows in order.split(settings.batch_size):
            total += step(images[rows], labels[rows]) * len(rows)
        self.epoch += 1
        mean = float(total) / len(images)
        if mean != mean or mean == float("inf"):
            raise ModelError(
                f"training must keep a finite loss, got {mean} in epoch {self.epoch}; lower --learning-rate"
            )
        return mean

    def note(self, validation: float) -> None:
        self.latest = validation
        if validation > self.best:
            self.best, self.stale = validation, 0
            self.best_weights = {name: t.clone() for name, t in self.model.state_dict().items()}
        else:
            self.stale += 1

    def store(self, path: Path, fingerprint: str) -> None:
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"best.{name}": t for name, t in self.best_weights.items()}
        if self.settings.momentum > 0:
            for name, parameter in self.model.named_parameters():
                tensors[f"momentum.{name}"] = self.optimiser.state[parameter]["momentum_buffer"]
        progress = {"epoch": self.epoch, "stale": self.stale, "best": self.best, "latest": self.latest}
        sparse_file.write(path, tensors, {"fingerprint": fingerprint, "progress": progress})

    def restore(self, path: Path, fingerprint: str) -> None:
        tensors, metadata = sparse_file.read(path)
        if metadata.get("fingerprint") != fingerprint:
            raise FileError(
                f"{path} must be this very run's checkpoint, got that of another network, data or settings; "
                "delete it to start anew"
            )
        device = next(self.model.parameters()).device
        part = {
            key: {n.removeprefix(f"{key}."): t for n, t in tensors.items() if n.startswith(f"{key}.")}
            for key in ("model", "best", "momentum")
        }
        self.model.load_state_dict(part["model"])
        self.best_weights = {name: t.to(device) for name, t in part["best"].items()}
        parameters = dict(self.model.named_parameters())
        for name, buffer in part["momentum"].items():
            self.optimiser.state[parameters[name]]["momentum_buffer"] = buffer.to(device)
        progress = metadata["progress"]
        self.epoch, self.stale = int(progress["epoch"]), int(progress["stale"])
        self.best, self.latest = float(progress["best"]), float(progress["latest"])


def _fingerprint(specification: str, data: DataSet, settings: Training) -> str:
    described = {
        "network": specification,
        "data": data.label,
        "rows": len(data.train.labels),
        **asdict(settings),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
