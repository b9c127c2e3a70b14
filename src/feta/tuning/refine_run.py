"""One run of refinement: passes over the rows, looks at those held out, steps back where the rate is too long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.model import clock, outputs_of, run_on
from feta.errors import ConfigError, ModelError, unknown_name
from feta.report import RefinePoint
from feta.tuning.matching import Rows
from feta.tuning.stepping import GraphedStep, Update, recordable, set_rate, snapshot

LossName = Literal["mse", "kl"]

BACK_AT = 1.2  # times the lowest loss


def _squares(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


def _divergence(output: Tensor, target: Tensor) -> Tensor:
    """KL(softmax target || softmax output), classes last, averaged over everything else."""
    logs = F.log_softmax(output, -1), F.log_softmax(target, -1)
    return F.kl_div(*logs, reduction="none", log_target=True).sum(-1).mean()


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": _squares, "kl": _divergence}


@dataclass(frozen=True)
class Refinement:
    """How to refine; `feta.prune(…, refine=Refinement(passes=5))`."""

    passes: int = 3
    learning_rate: float = 5e-3
    batch_size: int = 100
    loss: LossName = "kl"
    held_out: float = 0.05  # share of the rows, 2000 at the most
    check_every: float = 0.25  # passes between two looks at them
    patience: int = 8  # looks without a lower loss
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("passes", "learning_rate", "batch_size", "check_every", "patience", "seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"Refinement.{name} must be > 0 and finite, got {value}")
        if not 0 < self.held_out <= 0.5:
            raise ConfigError(f"Refinement.held_out must be in (0, 0.5], got {self.held_out}")
        if self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)


class RefineRun:
    """A run's state: what it has seen and the best weights."""

    def __init__(
        self,
        model: nn.Module,
        settings: Refinement,
        rows: Rows,
        device: torch.device,
        started: float,
        callback: Callable[[RefinePoint], None] | None,
    ) -> None:
        self.model, self.settings, self.rows, self.device = model, settings, rows, device
        self.started, self.callback = started, callback
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not learning:
            raise ModelError("model must have parameters with requires_grad, got none")
        on_gpu = device.type == "cuda"
        # On a GPU a tensor, which recorded steps read anew.
        rate = torch.tensor(settings.learning_rate, device=device) if on_gpu else settings.learning_rate
        fused = device.type in ("cpu", "cuda")
        self.optimiser = torch.optim.Adam(learning, rate, fused=fused, capturable=on_gpu)
        self.loss = LOSSES[settings.loss]
        update = Update(model, self.optimiser, self._loss)
        self.step: Callable[[Any, Any], Tensor] = update
        if on_gpu and rows.fixed and recordable(model):
            self.step = GraphedStep(update)
        self.history: list[RefinePoint] = []
        self.best, self.stale, self.scale = math.inf, 0, 1.0
        self.best_weights: dict[str, Any] = {}

    def over(self) -> Literal["passes", "held-out", "seconds"]:
        """Pass after pass until there is a reason to stop."""
        settings, count = self.settings, self.rows.count
        seen, look_at = 0, settings.check_every
        self._look(0.0)
        for number in range(settings.passes):
            for x, target, size in self.rows.batches(number, settings.batch_size):
                spent = 0.0 if settings.seconds is None else self._elapsed() / settings.seconds
                if spent >= 1:
                    self._look(seen / count)
                    return "seconds"
                # The rate reaches zero where the run ends, be it by passes or by time.
                done = max(seen / (count * settings.passes), spent)
                rate = self.scale * settings.learning_rate * (1 + math.cos(math.pi * done)) / 2
                set_rate(self.optimiser, [rate])
                self.step(x, target)
                seen += size
                if seen / count >= look_at - 1e-9:
                    look_at += settings.check_every
                    self._look(seen / count)
                    if self.stale >= settings.patience:
                        return "held-out"
        if self.history[-1].passes < settings.passes:
            self._look(float(settings.passes))
        return "passes"

    def _elapsed(self) -> float:
        return time.perf_counter() - self.started

    def _loss(self, output: Any, target: Tensor) -> Tensor:
        return self.loss(outputs_of(output), target)

    @torch.no_grad()
    def _look(self, passes: float) -> None:
        """The loss on the held-out rows; the weights are kept if it is the lowest."""
        total, rows = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for x, target, size in self.rows.held_out():
            output = outputs_of(run_on(self.model, x))
            if output.shape != target.shape:
                shapes = f"{tuple(output.shape[1:])} and {tuple(target.shape[1:])}"
                raise ModelError(f"model and reference must give outputs of one shape, got {shapes}")
            if self.settings.loss == "kl" and (output.ndim < 2 or output.shape[-1] == 1):
                raise ConfigError("loss must be 'mse' for a model with one output, got 'kl'")
            total += self.loss(output, target) * size
            rows += size
        loss = float(total) / rows
        if not math.isfinite(loss):
            cure = "lower learning_rate" if self.history else "look for it in the data and the models"
            raise ModelError(f"refinement must keep a finite loss, got {loss}; {cure}")
        point = RefinePoint(clock(self.device) - self.started, passes, loss)
        self.history.append(point)
        self.stale += 1
        if loss < self.best:
            self.best, self.stale = loss, 0
            self.best_weights = snapshot(self.model)
        elif loss > BACK_AT * self.best:
            self._back()
        if self.callback is not None:
            self.callback(point)

    def _back(self) -> None:
        """From the best weights on with a fifth of the rate: it was too long for this network."""
        self.scale /= 5
        self.model.load_state_dict(self.best_weights)
        for state in self.optimiser.state.values():  # in place, for steps that are recorded
            for value in state.values():
                value.zero_()
