"""Training as in Appendix C: SGD with momentum 0.9, learning rate 0.01 with exponential decay, batches
of 32, until validation accuracy saturates, 30 epochs at the most; the best epoch's weights are kept.

The training set is put on the device once and batched by index. Every epoch's order comes from
(seed, epoch) alone, so a run that was killed goes on from its last epoch to the same weights.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from feta.calibration.model import clock
from feta.errors import FileError, check_fields
from feta.files import sparse_file
from feta.files.network import compare, fill
from feta.files.plain import shortened
from feta.ranks import Ranks
from feta.tuning.batches import labelled
from feta.tuning.loop import Loop
from feta.tuning.stepping import sgd, threads_for
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
        check_fields(self, "> 0 and finite", "learning_rate", "decay", "batch_size", "max_epochs", "patience")
        check_fields(self, "in [0, 1)", "momentum")


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
    model = networks.build(specification, data.shape, seed=settings.seed).to(where).train()
    train, validation, test = (
        (data.normalisation.apply(half.images, where), half.labels.to(where))
        for half in (data.train, data.validation, data.test)
    )
    rows = len(data.train.labels)
    described = {"network": specification, "data": data.label, "rows": rows, **asdict(settings)}
    loop = _TrainLoop(
        model=model,
        optimiser=sgd(model, where, settings.learning_rate, settings.momentum),
        loss=F.cross_entropy,
        batches=labelled(train, Ranks(where), torch.float32, settings.batch_size, settings.seed, by_rows=True),
        ranks=Ranks(where),
        started=clock(where),
        passes=settings.max_epochs,
        decay=settings.decay,
        callback=callback,
        patience=settings.patience,
        validation=validation,
        checkpoint=checkpoint,
        fingerprint=hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest(),
    )
    loop.restore()
    with threads_for(model):
        if loop.stale < settings.patience:
            loop.run()
    loop.restore_best()
    scores = {"validation": loop.best, "test": accuracy(model, *test)}
    info = NetworkInfo(
        specification, data.shape, data.name, data.normalisation, preset, settings.seed, loop.number, scores
    )
    return Network(model.to("cpu").eval(), info)


@dataclass(kw_only=True)
class _TrainLoop(Loop):
    """Judged by the validation images after each epoch, and stored then."""

    patience: int
    validation: tuple[Tensor, Tensor]
    checkpoint: Path | None
    fingerprint: str

    cure = "lower --learning-rate"

    def judge(self) -> float:
        return accuracy(self.model, *self.validation)

    def after(self, seconds: float, passes: float, loss: float, score: float | None) -> tuple[EpochEvent, str | None]:
        if self.checkpoint is not None:
            self._store(self.checkpoint)
        event = EpochEvent(self.number + 1, self.passes, loss, score or 0.0, self.best)
        return event, "saturated" if self.stale >= self.patience else None

    def _store(self, path: Path) -> None:
        state = self.optimiser.state
        buffers = {n: state[p].get("momentum_buffer") for n, p in self.model.named_parameters()}
        parts = {"model": self.model.state_dict(), "best": self.best_weights or {}, "momentum": buffers}
        tensors = {f"{part}.{n}": t for part, group in parts.items() for n, t in group.items() if t is not None}
        progress = {"epoch": self.number + 1, "stale": self.stale, "best": self.best}
        sparse_file.write(path, tensors, {"fingerprint": self.fingerprint, "progress": progress})

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        cure = "delete it to start anew"
        try:
            opened = sparse_file.open_file(self.checkpoint)
            if opened.metadata.get("fingerprint") != self.fingerprint:
                raise FileError(
                    f"{self.checkpoint} must be this very run's checkpoint, got that of another network, data or "
                    "settings"
                )
            self._resume(self.checkpoint, opened.tensors(), opened.metadata.get("progress"))
        except FileError as error:
            raise FileError(f"{error}; {cure}") from error

    def _resume(self, path: Path, tensors: Mapping[str, Tensor], progress: Any) -> None:
        """Take everything over, after every check: half a checkpoint is none."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "momentum": {}}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            parts.setdefault(kind, {})[name] = tensor.to(self.ranks.device)
        own, weights = self.model.state_dict(), dict(self.model.named_parameters())
        compare(own, parts["model"], path)
        for kind, right in (("best", own), ("momentum", weights)):
            if parts[kind]:
                compare(right, parts[kind], path)
        kinds = {"epoch": int, "stale": int, "best": float}
        if len(parts) > 3 or not isinstance(progress, dict) or {n: type(v) for n, v in progress.items()} != kinds:
            raise FileError(f"{path} must say how far training was, got {shortened(progress)}")
        fill(self.model, parts["model"], path)
        self.best_weights = parts["best"]
        for name, buffer in parts["momentum"].items():
            self.optimiser.state[weights[name]]["momentum_buffer"] = buffer
        self.number, self.stale, self.best = progress["epoch"], progress["stale"], progress["best"]
