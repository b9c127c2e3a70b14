"""One run of retraining: epochs, looks at the validation data in between, and reasons to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.model import clock, outputs_of
from feta.errors import ConfigError, DataError, ModelError
from feta.masks import plain
from feta.report import RetrainPoint, RetrainReport
from feta.tuning.labelled import Batches, Validation
from feta.tuning.ranks import Ranks
from feta.tuning.stepping import GraphedStep, Loss, Update, copy_state, recordable, set_rate, snapshot

Optimiser = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Stopped = Literal["recovered", "saturated", "epochs", "seconds"]

TALK_EVERY = 16  # steps between two questions to the other processes whether the time is up


@dataclass(frozen=True)
class Retraining:
    """The numbers of a run: its optimiser's, its goal and its budget."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    decay: float = 0.95
    batch_size: int = 32
    max_epochs: int = 30
    patience: float | None = None
    seconds: float | None = None
    goal: float | None = None
    tolerance: float = 0.1
    check_every: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "learning_rate",
            "decay",
            "batch_size",
            "max_epochs",
            "patience",
            "seconds",
            "check_every",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be > 0 and finite, got {value}")
        if self.goal is not None and not math.isfinite(self.goal):
            raise ConfigError(f"goal must be finite, got {self.goal}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be in [0, 1), got {self.momentum}")
        for name in ("weight_decay", "tolerance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be >= 0 and finite, got {getattr(self, name)}")
        if self.check_every > 1:
            raise ConfigError(f"check_every must be a share of an epoch in (0, 1], got {self.check_every}")


class RetrainRun:
    """A run's state: what it has spent, what it has seen, and the best weights."""

    def __init__(
        self,
        model: nn.Module,
        settings: Retraining,
        loss: Loss,
        optimiser: Optimiser | None,
        ranks: Ranks,
        judge: Validation | None,
        started: float,
        callback: Callable[[RetrainPoint], None] | None,
        frozen: Sequence[nn.Module] = (),  # modules that stay in eval mode
        shown: nn.Module | None = None,  # what is judged, where it is not the model that is trained
    ) -> None:
        self.model, self.settings, self.ranks, self.device = model, settings, ranks, ranks.device
        self.frozen = frozen
        self.shown, self.steps = plain(model) if shown is None else shown, 0
        self.judge, self.callback = judge, callback
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not learning:
            raise ModelError("model must have parameters with requires_grad, got none")
        self.own = optimiser is None and loss is cross_entropy  # none of the user's code in a step
        self.optimiser = (optimiser or self._sgd)(learning)
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.update = Update(model, self.optimiser, loss)
        self.total, self.rows = torch.zeros((), device=self.device), 0
        self.history: list[RetrainPoint] = []
        self.best, self.best_epoch = -math.inf, 0.0
        self.best_weights: dict[str, Any] | None = None
        self.judging = 0.0
        self.started = started

    def over(self, batches: Batches) -> RetrainReport:
        """Epoch after epoch until there is a reason to stop."""
        settings = self.settings
        stopped = self._look(0.0)
        graphed = self.own and batches.fixed and self.device.type == "cuda" and recordable(self.model)
        step = GraphedStep(self.update) if graphed else self.update
        for epoch in range(settings.max_epochs):
            if stopped is not None:
                break
            set_rate(self.optimiser, [rate * settings.decay**epoch for rate in self.rates])
            stopped = self._epoch(epoch, batches, step)
        if self.best_weights is not None:
            plain(self.model).load_state_dict(self.best_weights)
        return RetrainReport(
            seconds=clock(self.device) - self.started,
            evaluation_seconds=self.judging,
            epochs=self.history[-1].epoch,
            recovered=None if settings.goal is None else stopped == "recovered",
            goal=settings.goal,
            tolerance=settings.tolerance,
            start=self.history[0].accuracy,
            accuracy=None if self.judge is None else self.best,
            history=tuple(self.history),
            stopped=stopped or "epochs",
            device=str(self.device),
            seed=settings.seed,
        )

    def _epoch(self, epoch: int, batches: Batches, step: Callable[..., Tensor]) -> Stopped | None:
        """One pass over the data with looks in between; why to stop, or None."""
        count, done = batches.count, 0
        self.model.train()
        for module in self.frozen:
            module.training = False
        for done, (x, y, size) in enumerate(batches.epoch(epoch), start=1):
            self.total.add_(step(x, y), alpha=size)
            self.rows += size
            self.steps += 1
            late = self._late()
            if late or (count is not None and self._due(done, count)):
                stopped = self._look(epoch + (min(done / count, 1.0) if count else 0.0))
                if stopped is not None or late:
                    return stopped or "seconds"
        if done == 0:
            raise DataError(f"data must give batches in every epoch, got none in epoch {epoch + 1}")
        if count == done:
            return None
        batches.count = done  # a stream says how long it is by ending
        return self._look(epoch + 1.0)

    def _due(self, done: int, count: int) -> bool:
        """Whether a look falls on this batch: at every `check_every` of an epoch, and at its end."""
        every = self.settings.check_every
        # Rounded, for 0.1 * 3 / 0.3 is less than one.
        looks = (math.floor(round(batch / count / every, 9)) for batch in (done - 1, done))
        return done == count or next(looks) < next(looks)

    def _late(self) -> bool:
        limit = self.settings.seconds
        if limit is None or (self.ranks.many and self.steps % TALK_EVERY):
            return False
        return self.ranks.any(time.perf_counter() - self.started >= limit)

    def _look(self, epoch: float) -> Stopped | None:
        """Judge the weights, keep them if they are the best, and say whether the goal is reached."""
        mean = float(self.total) / max(self.rows, 1)
        if self.ranks.any(not math.isfinite(mean)):  # all of them stop, or the others would wait for this one
            raise ModelError(
                f"retraining must keep a finite loss, got {mean} at epoch {epoch:.2f}; lower learning_rate, or look "
                "for values in the data that are not finite"
            )
        self.total.zero_()
        self.rows = 0
        before = clock(self.device)
        accuracy = None
        if self.judge is not None:
            if self.shown is not plain(self.model):
                copy_state(self.model, self.shown)
            accuracy = self.judge(self.shown)
        if accuracy is not None and not math.isfinite(accuracy):
            raise ConfigError(f"validation must give a finite number, got {accuracy}")
        now = clock(self.device)
        self.judging += now - before
        point = RetrainPoint(now - self.started, epoch, accuracy)
        self.history.append(point)
        if self.callback is not None:
            self.callback(point)
        if accuracy is None:
            return None
        if accuracy > self.best:
            self.best, self.best_epoch = accuracy, epoch
            self.best_weights = snapshot(plain(self.model))
        goal, patience = self.settings.goal, self.settings.patience
        if goal is not None and accuracy >= goal - self.settings.tolerance:
            return "recovered"
        return "saturated" if patience is not None and epoch - self.best_epoch >= patience else None

    def _sgd(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        settings = self.settings
        on_gpu = self.device.type == "cuda"
        # On a GPU a tensor, which recorded steps read anew.
        rate = torch.tensor(settings.learning_rate, device=self.device) if on_gpu else settings.learning_rate
        # The fused step wants a gradient for all or none; code of users may leave some out at first.
        fused = self.device.type in ("cpu", "cuda") and recordable(plain(self.model))
        return torch.optim.SGD(
            parameters, rate, settings.momentum, weight_decay=settings.weight_decay, fused=fused
        )


def cross_entropy(output: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs_of(output), labels)
