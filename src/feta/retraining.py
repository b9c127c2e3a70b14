"""retrain: fine-tune a pruned network with its zeros held, until it is as good as before or a budget is spent.

    minimize over the weights inside the masks   mean of loss(model(x), y)

by SGD with momentum, or any optimiser, on labelled data. Validation accuracy is looked at before the first
step and several times in an epoch; the best weights seen are kept. Under DistributedDataParallel every rank
calls `retrain`; they look at all ranks' validation data together and stop together.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from feta.calibration.capture import evaluating
from feta.engine import device_of
from feta.errors import ConfigError, DataError, ModelError
from feta.labelled import Batches, Validation, batches_of
from feta.masks import hold_zeros, plain
from feta.ranks import Ranks
from feta.report import RetrainPoint, RetrainReport
from feta.stepping import GraphedStep, Loss, Update, clock, output_tensor, recordable, set_rate, threads_for

Optimiser = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Stopped = Literal["recovered", "saturated", "epochs", "seconds"]

TALK_EVERY = 16  # steps between two questions to the other processes whether the time is up


@dataclass(frozen=True)
class RetrainResult:
    """A retrained copy of the model, and how it went."""

    model: nn.Module
    report: RetrainReport

    def __repr__(self) -> str:
        return repr(self.report)


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
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be > 0, got {value}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be in [0, 1), got {self.momentum}")
        for name in ("weight_decay", "tolerance"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.check_every > 1:
            raise ConfigError(f"check_every must be a share of an epoch in (0, 1], got {self.check_every}")


def retrain(
    model: nn.Module,
    data: Any,
    *,
    masks: Mapping[str, Tensor] | None = None,
    validation: Any = None,
    goal: float | None = None,
    tolerance: float = 0.1,
    max_epochs: int = 30,
    patience: float | None = None,
    seconds: float | None = None,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    decay: float = 0.95,
    batch_size: int = 32,
    check_every: float = 0.25,
    loss: Loss | None = None,
    optimiser: Optimiser | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RetrainPoint], None] | None = None,
) -> RetrainResult:
    """A copy of a pruned `model`, fine-tuned on labelled `data` with its zeros held, and a report.

    data: a pair of tensors (inputs, labels), or a loader of (x, y) pairs or of dicts with labels in them.
    masks: as in `PruneResult.masks`; by default the zeros that the model has.
    validation: as data, for accuracy in percent; or a function of the model, the larger the better. Without
        it the last weights are kept, not the best.
    goal: validation accuracy to come back to; it is reached at `goal - tolerance`.
    patience: epochs without a better validation accuracy after which it is saturated; None: no such end.
    seconds: a budget beside `max_epochs`; everything that is waited for counts, validation included.
    decay: of the learning rate, per epoch.
    batch_size: for a pair of tensors; in each process. A loader has its own.
    check_every: share of an epoch between two looks at the validation data.
    loss: of (output, labels), by default cross-entropy.
    optimiser: a function of the parameters, by default SGD with `learning_rate`, `momentum` and
        `weight_decay`, which are not used with another.
    """
    settings = Retraining(
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        decay=decay,
        batch_size=batch_size,
        max_epochs=max_epochs,
        patience=patience,
        seconds=seconds,
        goal=goal,
        tolerance=tolerance,
        check_every=check_every,
        seed=seed,
    )
    for name, value in (("goal", goal), ("patience", patience)):
        if value is not None and validation is None:
            raise ConfigError(f"validation must be given with a {name}, got None")
    if isinstance(optimiser, torch.optim.Optimizer):
        raise ConfigError(
            "optimiser must be a function of the parameters, for the model is copied, got an optimiser; "
            "pass for example optimiser=lambda parameters: torch.optim.AdamW(parameters, 1e-4)"
        )
    home = device_of(model)
    where = torch.device(device) if device is not None else home
    started = clock(where)
    ranks = Ranks.of(model, where)
    work = _copy(model, where)
    dtype = next((p.dtype for p in work.parameters() if p.is_floating_point()), torch.float32)
    batches = batches_of(data, ranks, dtype, batch_size=batch_size, seed=seed)
    if ranks.many and not ranks.same(batches.count or 0):
        raise DataError(
            f"data must give as many batches in every process, got {batches.count} in process {ranks.rank} "
            "and another number elsewhere; use a DistributedSampler"
        )
    judge = None if validation is None else Validation(validation, ranks, dtype)
    with hold_zeros(work, masks), threads_for(work), evaluating(work):
        run = _Run(work, settings, loss or _cross_entropy, optimiser, ranks, judge, started, callback)
        report = run.over(batches)
    return RetrainResult(work if ranks.many else work.to(home), report)


class _Run:
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
    ) -> None:
        self.model, self.settings, self.ranks, self.device = model, settings, ranks, ranks.device
        self.judge, self.callback = judge, callback
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not learning:
            raise ModelError("model must have parameters with requires_grad, got none")
        self.own = optimiser is None and loss is _cross_entropy  # none of the user's code in a step
        self.optimiser = (optimiser or self._sgd)(learning)
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.update = Update(model, self.optimiser, loss)
        self.total, self.rows = torch.zeros((), device=self.device), 0
        self.history: list[RetrainPoint] = []
        self.best, self.best_epoch = -math.inf, 0.0
        self.best_weights: dict[str, Tensor] | None = None
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
        for done, (x, y, size) in enumerate(batches.epoch(epoch), start=1):
            self.total += step(x, y) * size
            self.rows += size
            late = self._late(done)
            if late or (count is not None and self._due(done, count)):
                stopped = self._look(epoch + (done / count if count else 0.0))
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

    def _late(self, done: int) -> bool:
        limit = self.settings.seconds
        if limit is None or (self.ranks.many and done % TALK_EVERY):
            return False
        return self.ranks.any(time.perf_counter() - self.started >= limit)

    def _look(self, epoch: float) -> Stopped | None:
        """Judge the weights, keep them if they are the best, and say whether the goal is reached."""
        mean = float(self.total) / max(self.rows, 1)
        if not math.isfinite(mean):
            raise ModelError(
                f"retraining must keep a finite loss, got {mean} at epoch {epoch:.2f}; lower learning_rate"
            )
        self.total.zero_()
        self.rows = 0
        before = clock(self.device)
        accuracy = None if self.judge is None else self.judge(plain(self.model))
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
            self.best_weights = {name: t.clone() for name, t in plain(self.model).state_dict().items()}
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


def _cross_entropy(output: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(output_tensor(output), labels)


def _copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy on the device; of a model in a distributed wrapper, in a wrapper of the same settings."""
    if not isinstance(model, DistributedDataParallel):
        return copy.deepcopy(model).to(device)
    if device != device_of(model):
        raise ConfigError(f"device must be the wrapped model's, got {device} for {device_of(model)}")
    wrapper = DistributedDataParallel(
        copy.deepcopy(model.module),
        device_ids=model.device_ids,
        process_group=model.process_group,
        broadcast_buffers=model.broadcast_buffers,
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
    )
    wrapper.training = model.training
    return wrapper
