"""refine: fit the surviving weights so that a pruned network gives the original's outputs, without labels.

    minimize over the weights inside the masks   mean over rows of  KL(softmax f0(x) || softmax f(x))   (loss "kl")
                                                 or  ||f(x) - f0(x)||^2                                  (loss "mse")

f is the pruned network and f0 the original. Adam makes a few passes over unlabelled rows while its rate falls to
zero along half a cosine; biases and unpruned layers are fitted too. Rows that are held out decide which weights are
kept and when to stop. If their loss rises, the run goes back to the best weights, and on with a fifth of the rate.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.model import call, clock, device_of, differentiable, evaluating, float_dtype, outputs_of
from feta.errors import ConfigError, ModelError, unknown_name
from feta.masks import hold_zeros
from feta.report import RefinePoint, RefineReport
from feta.tuning.batches import Batch, Original, matched
from feta.tuning.loop import Loop
from feta.tuning.stepping import NARROW, Ranks, check, learning, overridden, rate_on, threads_for, wake_up

BACK_AT = 1.2  # times the lowest loss


def _divergence(output: Tensor, target: Tensor) -> Tensor:
    """KL(softmax target || softmax output), classes last, averaged over everything else."""
    logs = F.log_softmax(output, -1), F.log_softmax(target, -1)
    return F.kl_div(*logs, reduction="none", log_target=True).sum(-1).mean()


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": F.mse_loss, "kl": _divergence}


@dataclass(frozen=True)
class Refinement:
    """How to refine: `feta.refine(…, Refinement(passes=5))` or `feta.prune(…, refine=Refinement(passes=5))`."""

    passes: int = 3  # over the data, at the most; the learning rate falls to zero over them
    learning_rate: float = 5e-3  # of Adam, at the start
    batch_size: int = 100
    loss: Literal["mse", "kl"] = "kl"  # "kl" for scores of classes in the last dimension, "mse" for the rest
    held_out: float = 0.05  # share of the rows, 2000 at the most, that judge the weights and are not fitted
    check_every: float = 0.25  # share of a pass between two looks at them; its end is looked at as well
    patience: int = 8  # looks without a lower loss before it stops
    seconds: float | None = None  # a time budget beside the passes

    def __post_init__(self) -> None:
        positive = ("passes", "learning_rate", "batch_size", "check_every", "patience", "seconds")
        check(self, "> 0 and finite", *positive)
        check(self, "in (0, 0.5]", "held_out")
        if self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)


@dataclass(frozen=True)
class RefineResult:
    """A refined copy of the model, and how it went."""

    model: nn.Module
    report: RefineReport


def refine(
    model: nn.Module,
    reference: nn.Module,
    data: Any,
    settings: Refinement | None = None,
    *,
    passes: int | None = None,
    learning_rate: float | None = None,
    seconds: float | None = None,
    masks: Mapping[str, Tensor] | None = None,
    n_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RefinePoint], None] | None = None,
) -> RefineResult:
    """Fit a copy of a pruned model to the outputs of the original on unlabelled data, with its zeros held.

    model: the pruned model; it is not changed.
    reference: the model whose outputs are matched, as it was before pruning. Of several outputs the one called
        `logits` is matched, or else the first float tensor.
    data: unlabelled inputs, as for `feta.prune`.
    settings: how to refine; None for the defaults of `feta.Refinement`.
    passes, learning_rate, seconds: if given, they replace those of the settings.
    masks: true where a weight may live, as in `PruneResult.masks`; by default the model's zeros are held.
    n_samples: use at most this many samples of the data.
    seed: for the order of the rows, and for the choice of `n_samples`.
    device: where to work; by default where the model is.
    callback: called with a (seconds, passes, loss) after each look at the held-out rows.

    Returns a RefineResult: `model`, on the device of the given one, and `report`.
    Raises ConfigError if a setting, the data or a mask is not what it may be, and ModelError if a loss is not
    finite, or if the two models give no outputs of one shape.

    Example::

        pruned = feta.prune(model, images, sparsity=0.9)
        refined = feta.refine(pruned.model, model, images, passes=5).model
    """
    settings = overridden(Refinement, settings, passes=passes, learning_rate=learning_rate, seconds=seconds)
    where = torch.device(device_of(model) if device is None else device)
    wake_up()
    started = clock(where)
    work, result = copy.deepcopy(model).to(where), copy.deepcopy(model)
    if float_dtype(work) in NARROW:
        work = work.float()
    twin = reference if device_of(reference) == where else copy.deepcopy(reference).to(where)
    original = Original(twin, where, float_dtype(work))
    with evaluating(work, twin), differentiable(work), hold_zeros(work, masks) as hold, threads_for(work):
        batches, held_out = matched(data, original, settings.held_out, settings.batch_size, n_samples, seed)
        rate, on_gpu = rate_on(where, settings.learning_rate), where.type == "cuda"
        loop = _RefineLoop(
            model=work,
            optimiser=torch.optim.Adam(learning(work), rate, fused=on_gpu or where.type == "cpu", capturable=on_gpu),
            loss=lambda output, target: LOSSES[settings.loss](outputs_of(output), target),
            batches=batches,
            ranks=Ranks(where),
            started=started,
            passes=settings.passes,
            seconds=settings.seconds,
            check_every=settings.check_every,
            callback=callback,
            settings=settings,
            held_out=held_out,
        )
        stopped = loop.look() or loop.run()
        loop.restore_best()
        hold.apply_()
    result.load_state_dict(work.state_dict())
    report = RefineReport(
        seconds=clock(where) - started,
        passes=loop.history[-1].passes,
        loss_before=loop.history[0].loss,
        loss_after=-loop.best,
        history=tuple(loop.history),
        stopped=cast(Literal["passes", "held-out", "seconds"], stopped),
        loss=settings.loss,
        device=str(where),
        seed=seed,
    )
    return RefineResult(result, report)


@dataclass(kw_only=True)
class _RefineLoop(Loop):
    """Judged by the loss on the held-out rows."""

    settings: Refinement
    held_out: Callable[[], Iterable[Batch]]
    scale: float = 1.0  # of the learning rate

    def rate(self, first: float, over: float) -> float:
        return self.scale * first * (1 + math.cos(math.pi * over)) / 2

    @torch.no_grad()
    def judge(self) -> float:
        """Minus the mean loss on the held-out rows."""
        total, rows = torch.zeros((), dtype=torch.float64, device=self.ranks.device), 0
        for x, target, size in self.held_out():
            output = outputs_of(call(self.model, x, target.device, target.dtype))
            if output.shape != target.shape:
                shapes = f"{tuple(output.shape[1:])} and {tuple(target.shape[1:])}"
                raise ModelError(f"model and reference must give outputs of one shape, got {shapes}")
            if self.settings.loss == "kl" and (output.ndim < 2 or output.shape[-1] == 1):
                raise ConfigError("loss must be 'mse' for a model with one output, got 'kl'")
            total += LOSSES[self.settings.loss](output, target) * size
            rows += size
        loss = float(total) / rows
        if not math.isfinite(loss):
            cure = self.cure if self.steps else "look for it in the data and the models"
            raise ModelError(f"refinement must keep a finite loss, got {loss}; {cure}")
        return -loss

    def after(self, seconds: float, passes: float, loss: float, score: float | None) -> tuple[Any, str | None]:
        held_out = -(score or 0.0)
        if held_out > BACK_AT * -self.best:  # the rate is too high for this network
            self.scale /= 5
            self.restore_best()
            for state in self.optimiser.state.values():  # in place, for steps that are recorded
                for value in state.values():
                    value.zero_()
        return RefinePoint(seconds, passes, held_out), "held-out" if self.stale >= self.settings.patience else None
