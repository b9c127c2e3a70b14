"""retrain: fine-tune a pruned network with its zeros held, until it is as good as before or a budget is spent.

    minimize over the weights inside the masks   mean of loss(model(x), y)

by SGD with momentum, or any optimiser, on labelled data. Validation accuracy is looked at before the first
step and several times in an epoch; the best weights seen are kept. Under DistributedDataParallel every rank
calls `retrain`; they look at all ranks' validation data together and stop together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from feta.calibration.model import clock, device_of, evaluating, float_dtype, run_on
from feta.errors import ConfigError, DataError
from feta.masks import hold_zeros, plain
from feta.report import RetrainPoint, RetrainReport
from feta.tuning.labelled import Batches, Validation, batches_of
from feta.tuning.ranks import Ranks
from feta.tuning.retrain_run import Optimiser, Retraining, RetrainRun, cross_entropy
from feta.tuning.stepping import NARROW, Loss, copy_state, threads_for, wake_up


@dataclass(frozen=True)
class RetrainResult:
    """A retrained copy of the model, and how it went."""

    model: nn.Module
    report: RetrainReport

    def __repr__(self) -> str:
        return repr(self.report)


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
    wake_up()
    started = clock(where)
    ranks = Ranks.of(model, where)
    work = _copy(model, where)
    dtype = float_dtype(work)
    batches = batches_of(data, ranks, dtype, batch_size=batch_size, seed=seed)
    shown = None
    if dtype in NARROW and not ranks.many:
        # Too coarse for small steps: trained in float32 where that can be, and cast to be judged and handed back.
        wide = copy.deepcopy(work).float()
        batches = batches_of(data, ranks, torch.float32, batch_size=batch_size, seed=seed)
        if _runs(wide, batches):
            work, shown = wide, work
        else:
            batches = batches_of(data, ranks, dtype, batch_size=batch_size, seed=seed)
    if ranks.many and not ranks.same(batches.count or 0):
        raise DataError(
            f"data must give as many batches in every process, got {batches.count} in process {ranks.rank} "
            "and another number elsewhere; use a DistributedSampler"
        )
    judge = None if validation is None else Validation(validation, ranks, dtype)
    frozen = _frozen(plain(work))
    with (
        hold_zeros(work, masks),
        threads_for(work),
        evaluating(work),
        _own_random_numbers(where, seed + ranks.rank),
    ):
        run = RetrainRun(
            work, settings, loss or cross_entropy, optimiser, ranks, judge, started, callback, frozen, shown
        )
        report = run.over(batches)
    work.zero_grad(set_to_none=True)
    if shown is not None:
        copy_state(work, shown)
        work = shown
    return RetrainResult(work if ranks.many else work.to(home), report)


@contextmanager
def _own_random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """Dropout and a loader's order follow from the seed, and the caller's random numbers go on as if nothing was."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _frozen(model: nn.Module) -> list[nn.Module]:
    """Layers in eval mode beside others that are not, such as a frozen batch-norm: they are meant to stay so."""
    leaves = [module for module in model.modules() if not any(module.children())]
    learning = any(leaf.training and any(True for _ in leaf.parameters()) for leaf in leaves)
    return [leaf for leaf in leaves if not leaf.training] if learning else []


@torch.no_grad()
def _runs(model: nn.Module, batches: Batches) -> bool:
    """Whether a model takes a batch of another precision than it was made for; one that casts by itself does not."""
    x = next((x for x, _, _ in batches.epoch(0)), None)
    try:
        with evaluating(model):
            return x is None or run_on(model, x) is not None
    except RuntimeError:
        return False


def _copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy on the device; of a model in a distributed wrapper, in a wrapper of the same settings."""
    if not isinstance(model, DistributedDataParallel):
        return copy.deepcopy(model).to(device)
    if device != device_of(model):
        raise ConfigError(f"device must be the wrapped model's, got {device} for {device_of(model)}")
    # Torch warns of this word alone, whatever it says.
    words: dict[str, Any] = {} if model.broadcast_buffers else {"broadcast_buffers": False}
    wrapper = DistributedDataParallel(
        copy.deepcopy(model.module),
        device_ids=model.device_ids,
        process_group=model.process_group,
        **words,
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
    )
    wrapper.training = model.training
    return wrapper
