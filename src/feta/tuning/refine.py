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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.model import clock, device_of, differentiable, evaluating, float_dtype
from feta.masks import hold_zeros
from feta.report import RefinePoint, RefineReport
from feta.tuning.matching import Original, rows_of
from feta.tuning.refine_run import LossName, Refinement, RefineRun
from feta.tuning.stepping import NARROW, threads_for, wake_up


@dataclass(frozen=True)
class RefineResult:
    """A refined copy of the model, and how it went."""

    model: nn.Module
    report: RefineReport


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
    check_every: float = Refinement.check_every,
    patience: int = Refinement.patience,
    seconds: float | None = None,
    n_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RefinePoint], None] | None = None,
) -> RefineResult:
    """A copy of a pruned `model` whose outputs match those of `reference` on unlabelled `data`, and a report.

    Of a model with several outputs it is the one called `logits`, or the first, that is matched.

    data: as for `feta.prune`.
    masks: as in `PruneResult.masks`; by default the zeros that the model has.
    passes: over the data, at the most; the learning rate falls to zero over them.
    loss: "kl" for scores of classes, in the outputs' last dimension; "mse" for outputs of any other kind.
    held_out: share of the rows that are not fitted but decide which weights are kept, and when to stop.
    check_every: passes between two looks at them; patience: looks without a lower loss before it stops.
    seconds: a budget beside `passes`.
    """
    settings = Refinement(
        passes=passes,
        learning_rate=learning_rate,
        batch_size=batch_size,
        loss=loss,
        held_out=held_out,
        check_every=check_every,
        patience=patience,
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
    wake_up()
    started = clock(where)
    work, result = copy.deepcopy(model).to(where), copy.deepcopy(model)
    if float_dtype(work) in NARROW:  # too coarse for small steps: fitted in float32, cast back
        work = work.float()
    dtype = float_dtype(work)
    twin = reference if device_of(reference) == where else copy.deepcopy(reference).to(where)
    with evaluating(work, twin), differentiable(work), hold_zeros(work, masks) as hold, threads_for(work):
        rows = rows_of(data, Original(twin, where, dtype), settings.held_out, n_samples, seed)
        run = RefineRun(work, settings, rows, where, started, callback)
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
