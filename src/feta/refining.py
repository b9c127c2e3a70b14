"""refine: fit the surviving weights so that a pruned network gives the original's outputs, without labels.

    minimize over the weights inside the masks   mean over rows of  KL(softmax f0(x) || softmax f(x))   (loss "kl")
                                                 or  ||f(x) - f0(x)||^2                                  (loss "mse")

f is the pruned network, f0 the original. A few passes of Adam over unlabelled rows, the rate falling to zero
along half a cosine; biases and layers that were not pruned are fitted too. Some rows are held out: they
decide which weights are kept, whether the rate is too long (back to the best weights, on with a fifth of it)
and when more passes are of no use.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.capture import evaluating
from feta.engine import device_of
from feta.errors import ConfigError, ModelError, unknown_name
from feta.masks import hold_zeros
from feta.matching import Original, Rows, rows_of
from feta.report import RefinePoint, RefineReport
from feta.stepping import GraphedStep, Update, clock, output_tensor, recordable, set_rate, threads_for

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
class RefineResult:
    """A refined copy of the model, and how it went."""

    model: nn.Module
    report: RefineReport


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
            if value is not None and not value > 0:
                raise ConfigError(f"Refinement.{name} must be > 0, got {value}")
        if not 0 < self.held_out <= 0.5:
            raise ConfigError(f"Refinement.held_out must be in (0, 0.5], got {self.held_out}")
        if self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)


def refine(
    model: nn.Module,
    reference: nn.Module,
    data: Any,
    *,
    masks: Mapping[str, Tensor] | None = None,
    passes: int = Refinement.passes,
    learning_rate: float = Refinement.learning_rate,
    batch_size: int = Refinement.batch_size,
    loss: LossName = Refinement.loss,
    held_out: float = Refinement.held_out,
    seconds: float | None = None,
    n_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RefinePoint], None] | None = None,
) -> RefineResult:
    """A copy of a pruned `model` whose outputs match those of `reference` on unlabelled `data`, and a report.

    data: as for `feta.prune`.
    masks: as in `PruneResult.masks`; by default the zeros that the model has.
    passes: over the data, at the most; the learning rate falls to zero over them.
    loss: "kl" for scores of classes, in the outputs' last dimension; "mse" for outputs of any other kind.
    held_out: share of the rows that are not fitted but decide which weights are kept, and when to stop.
    seconds: a budget beside `passes`.
    """
    settings = Refinement(
        passes=passes,
        learning_rate=learning_rate,
        batch_size=batch_size,
        loss=loss,
        held_out=held_out,
        seconds=seconds,
    )
    return refine_by(
        settings,
        model,
        reference,
        data,
        masks,
        n_samples=n_samples,
        seed=seed,
        device=device,
        callback=callback,
    )


def refine_by(
    settings: Refinement,
    model: nn.Module,
    reference: nn.Module,
    data: Any,
    masks: Mapping[str, Tensor] | None = None,
    *,
    n_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RefinePoint], None] | None = None,
) -> RefineResult:
    """`refine` with its settings in one object."""
    where = torch.device(device) if device is not None else device_of(model)
    started = clock(where)
    work, result = copy.deepcopy(model).to(where), copy.deepcopy(model)
    dtype = next((p.dtype for p in work.parameters() if p.is_floating_point()), torch.float32)
    if dtype in (torch.float16, torch.bfloat16):  # too coarse for small steps: fitted in float32, cast back
        work, dtype = work.float(), torch.float32
    twin = reference if device_of(reference) == where else copy.deepcopy(reference).to(where)
    with evaluating(work, twin), hold_zeros(work, masks) as hold, threads_for(work):
        rows = rows_of(data, Original(twin, where, dtype), settings.held_out, n_samples, seed)
        run = _Run(work, settings, rows, where, started, callback)
        stopped = run.over()
        work.load_state_dict(run.best_weights)
        hold.apply_()
    result.load_state_dict(work.state_dict())
    report = RefineReport(
        seconds=clock(where) - started,
        passes=run.history[-1].passes,
        loss_before=run.history[0].loss,
        loss_after=run.best,
        history=tuple(run.history),
        stopped=stopped,
        loss=settings.loss,
        device=str(where),
        seed=seed,
    )
    return RefineResult(result, report)


class _Run:
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
        self.best_weights: dict[str, Tensor] = {}

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
        return self.loss(output_tensor(output), target)

    @torch.no_grad()
    def _look(self, passes: float) -> None:
        """The loss on the held-out rows; the weights are kept if it is the lowest."""
        total, rows = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for x, target, size in self.rows.held_out():
            output = output_tensor(self.model(**x) if isinstance(x, Mapping) else self.model(x))
            if output.shape != target.shape:
                shapes = f"{tuple(output.shape[1:])} and {tuple(target.shape[1:])}"
                raise ModelError(f"model and reference must give outputs of one shape, got {shapes}")
            if self.settings.loss == "kl" and output.shape[-1] == 1:
                raise ConfigError("loss must be 'mse' for a model with one output, got 'kl'")
            total += self.loss(output, target) * size
            rows += size
        loss = float(total) / rows
        if not math.isfinite(loss):
            raise ModelError(f"refinement must keep a finite loss, got {loss}; lower learning_rate")
        point = RefinePoint(clock(self.device) - self.started, passes, loss)
        self.history.append(point)
        self.stale += 1
        if loss < self.best:
            self.best, self.stale = loss, 0
            self.best_weights = {name: t.clone() for name, t in self.model.state_dict().items()}
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
