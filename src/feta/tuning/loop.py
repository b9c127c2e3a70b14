"""The training loop under `feta.refine`, `feta.retrain` and the laboratory's training.

    for each pass over the data
        for each batch    stop if the time is up, set the learning rate, take a step
        now and then      look: judge the weights, keep them if they are the best so far, perhaps stop

A subclass says what differs: the learning rate, the judge, and what follows from a look.
"""

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from feta.calibration.model import clock, run_on
from feta.errors import DataError, ModelError, warn
from feta.masks import plain
from feta.ranks import Ranks
from feta.tuning.batches import Batches
from feta.tuning.recorder import Recorder, recordable
from feta.tuning.stepping import Loss

TALK_EVERY = 16  # steps between two questions to the other processes whether the time is up


@dataclass(kw_only=True)
class Loop(ABC):
    """A run over batches: how far it is, and the best weights it has seen."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    loss: Loss
    batches: Batches
    ranks: Ranks
    started: float
    passes: int  # at the most
    decay: float = 1.0  # of the learning rate, per pass
    seconds: float | None = None  # a time budget beside the passes
    check_every: float = 1.0  # share of a pass between two looks; its end is looked at as well
    record: bool = True  # on a GPU, record steps as a CUDA graph; False if they run code of the user
    callback: Callable[[Any], None] | None = None

    cure: ClassVar[str] = "lower learning_rate, or look for values in the data that are not finite"

    def __post_init__(self) -> None:
        device = self.ranks.device
        fixed = self.record and self.batches.fixed and device.type == "cuda" and self.recordable()
        self.step: Callable[[Any, Any], Tensor] = Recorder(self.update) if fixed else self.update
        self.first_rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.rates: list[float] = []
        self.length = self.batches.length
        self.over = 0.0  # the share of the run that is over
        self.number, self.done, self.steps = 0, 0, 0  # of this pass, how far it is, steps of the run
        self.total, self.rows = torch.zeros((), device=device), 0
        self.best, self.best_at, self.stale = -math.inf, 0.0, 0  # stale: looks since the best one
        self.best_weights: dict[str, Any] | None = None
        self.history: list[Any] = []
        self.judging = 0.0  # seconds
        self.spent = 0.0  # the share of the time budget that was used up when it was asked for last

    def rate(self, first: float, over: float) -> float:
        """The learning rate, given the first one, when a share `over` of the run is over."""
        return first * self.decay**self.number

    @abstractmethod
    def judge(self) -> float | None:
        """How good the weights are, the larger the better; None to keep the last weights, not the best."""

    @abstractmethod
    def after(self, seconds: float, passes: float, loss: float, score: float | None) -> tuple[Any, str | None]:
        """What the history says of a look, and the reason to stop, or None.

        seconds, passes: since the start. loss: the mean in training since the look before. score: see `judge`.
        """

    def run(self) -> str:
        """Train until there is a reason to stop, and return it: that of `after`, "seconds" or "passes"."""
        reason = None
        while reason is None and self.number < self.passes:
            reason = self._one_pass()
            self.number += 1
        if isinstance(self.step, Recorder) and self.step.failure:
            warn(f"steps ran without a CUDA graph: {self.step.failure}")
        self.step = self.update  # frees the graph now, not whenever garbage is collected
        return reason or "passes"

    def look(self) -> str | None:
        """Judge the weights, and keep them if they are the best; return the reason to stop, or None."""
        passes, loss = self._passed(), float(self.total) / max(self.rows, 1)
        # All processes stop, or the others would wait for this one.
        if self.ranks.any(not math.isfinite(loss)):
            raise ModelError(f"training must keep a finite loss, got {loss} at epoch {passes:.2f}; {self.cure}")
        self.total.zero_()
        self.rows = 0
        before = clock(self.ranks.device)
        score = self.judge()
        now = clock(self.ranks.device)
        self.judging += now - before
        self.stale += 1
        if score is not None and score > self.best:
            self.best, self.best_at, self.stale = score, passes, 0
            self.best_weights = copy.deepcopy(plain(self.model).state_dict())
        point, reason = self.after(now - self.started, passes, loss, score)
        self.history.append(point)
        if self.callback is not None:
            self.callback(point)
        return reason

    def recordable(self) -> bool:
        """Whether steps may be recorded as a CUDA graph."""
        return recordable(self.model)

    def forward(self, x: Any) -> Any:
        return run_on(self.model, x)

    def stepped(self) -> None:  # noqa: B027 - most have nothing to do here
        """Called after every step."""

    def restore_best(self) -> None:
        """Give the model the best weights seen."""
        if self.best_weights is not None:
            plain(self.model).load_state_dict(self.best_weights)

    def update(self, x: Any, y: Any) -> Tensor:
        """Change the weights by a step on a batch's mean loss; return that loss, from before the step."""

        def closure() -> Tensor:  # a function, because some optimisers evaluate a batch more than once
            self.optimiser.zero_grad(set_to_none=True)
            value = self.loss(self.forward(x), y)
            value.backward()
            return value

        loss: Any = self.optimiser.step(closure)  # type: ignore[arg-type]
        return torch.as_tensor(loss).detach()

    def _one_pass(self) -> str | None:
        self.done = 0
        for batch in self.batches.over(self.number):
            spent = self._spent()
            if spent >= 1:
                return (self.look() if self.rows else None) or "seconds"
            self._set_rate(spent)
            self.total.add_(self.step(batch.x, batch.y), alpha=batch.size)
            self.rows += batch.size
            self.steps += 1
            self.stepped()
            before = self.done
            self.done += batch.size if self.batches.by_rows else 1
            if self._due(before) and (reason := self.look()):
                return reason
        if self.done == 0:
            raise DataError(f"data must give batches in every epoch, got none in epoch {self.number + 1}")
        if self.done == self.length:
            return None
        self.length = self.done  # a stream tells its length by ending
        return self.look()

    def _spent(self) -> float:
        """The share of the time budget that is used up, the same in every process."""
        if self.seconds is not None and not (self.ranks.many and self.steps % TALK_EVERY):
            self.spent = self.ranks.most((time.perf_counter() - self.started) / self.seconds)
        return self.spent

    def _set_rate(self, spent: float) -> None:
        over = self.over = max(self._passed(self.passes), spent)
        rates = [self.rate(first, over) for first in self.first_rates]
        if rates == self.rates:
            return
        self.rates = rates
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place, for steps that are recorded
            else:
                group["lr"] = rate

    def _passed(self, unit: int = 1) -> float:
        """Passes so far, in units of that many."""
        length = self.length
        if not length:
            return self.number / unit
        return (self.number * length + min(self.done, length)) / (length * unit)

    def _due(self, before: int) -> bool:
        """Whether the last batch reached a multiple of `check_every`, or the end of the pass."""
        length = self.length
        if length is None:
            return False
        # Rounded because 0.1 * 3 / 0.3 is less than one.
        first, last = (math.floor(round(at / length / self.check_every, 9)) for at in (before, self.done))
        return self.done == length or first < last
