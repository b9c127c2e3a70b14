"""retrain: fine-tune a pruned network with its zeros held, until it is as good as before or a budget is spent.

    minimize over the weights inside the masks   mean of loss(model(x), y)

by SGD with momentum, or any optimiser, on labelled data. The validation accuracy is computed before the first
step and several times in an epoch, and the best weights seen are kept. Under DistributedDataParallel every
process calls `retrain`; they judge by all processes' validation data together and stop together.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.calibration.model import clock, device_of, evaluating, float_dtype, outputs_of, place, run_on
from feta.calibration.recording import running
from feta.errors import ConfigError, DataError, FetaError, check_fields, one_line
from feta.gates import gated
from feta.masks import hold_zeros, plain
from feta.progress import Progress
from feta.ranks import Ranks
from feta.report import Reported, RetrainPoint, RetrainReport
from feta.tuning.batches import Batches, Judge, LoaderBatches, TensorBatches, labelled, score_of
from feta.tuning.loop import Loop
from feta.tuning.stepping import NARROW, Loss, copy_of, learning, overridden, sgd, threads_for, wake_up


@gated
@dataclass(frozen=True)
class Retraining:
    """How to retrain: `feta.retrain(…, Retraining(max_epochs=10, patience=2))`."""

    learning_rate: float = 0.01  # of SGD, as are momentum and weight decay: not used with another optimiser
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0  # of SGD
    decay: float = 0.95  # of the learning rate, per epoch
    batch_size: int = 32  # for a pair of tensors, in each process; a loader has its own
    max_epochs: int = 30  # over the data
    patience: float | None = None  # epochs without a better validation accuracy before it stops
    seconds: float | None = None  # a budget for everything that is waited for, validation included
    goal: float | None = None  # the validation accuracy to come back to
    tolerance: float = 0.1  # the goal is reached at goal - tolerance
    check_every: float = 0.25  # share of an epoch between two looks at the validation data

    def __post_init__(self) -> None:
        check_fields(
            self, "> 0 and finite", "learning_rate", "decay", "batch_size", "max_epochs", "patience", "seconds"
        )
        check_fields(self, ">= 0 and finite", "weight_decay", "tolerance")
        check_fields(self, "in [0, 1)", "momentum")
        check_fields(self, "in (0, 1]", "check_every")
        check_fields(self, "finite", "goal")


@dataclass(frozen=True, repr=False)
class RetrainResult(Reported):
    """A retrained copy of the model, and how it went."""

    model: nn.Module  # with the zeros it had
    report: RetrainReport  # prints as a line


@gated
@torch.inference_mode(False)  # in that mode nothing can be fitted
def retrain(
    model: nn.Module,
    data: Any,
    settings: Retraining | None = None,
    *,
    max_epochs: int | None = None,
    goal: float | None = None,
    learning_rate: float | None = None,
    seconds: float | None = None,
    masks: Mapping[str, Tensor] | None = None,
    validation: Any = None,
    loss: Loss | None = None,
    optimiser: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callable[[RetrainPoint], None] | None = None,
    progress: bool = False,
) -> RetrainResult:
    """Fine-tune a copy of a pruned model on labelled data, with its zeros held.

    model: the pruned model; it is not changed.
    data: a pair of tensors (inputs, labels), or a loader of (x, y) pairs or of dicts with labels in them.
    settings: how to retrain; None for the defaults of `feta.Retraining`.
    max_epochs, goal, learning_rate, seconds: if given, they replace those of the settings.
    masks: true where a weight may live, as in `PruneResult.masks`; by default the model's zeros are held.
    validation: as `data`, for accuracy in percent, or a function of the model, the larger the better. Without
        it the last weights are kept, not the best.
    loss: a function of (output, labels); by default cross-entropy.
    optimiser: a function of the parameters; by default SGD.
    seed: for the order of the samples and for dropout.
    device: where to work; by default where the model is.
    callback: called with a (seconds, epoch, accuracy) after each look at the validation data.
    progress: whether a bar is shown, as by `feta.prune`.

    Returns a RetrainResult: `model`, on the device of the given one, and `report`.
    Raises ConfigError if a setting, the data or a mask is not what it may be, DataError if there are no batches,
    and ModelError if the loss is not finite or the model has nothing to train.

    Example::

        pruned = feta.prune(model, images, sparsity=0.9)
        result = feta.retrain(pruned.model, (images, labels), validation=(others, their_labels), goal=97.5)
    """
    settings = overridden(
        Retraining, settings, max_epochs=max_epochs, goal=goal, learning_rate=learning_rate, seconds=seconds
    )
    for name in ("goal", "patience"):
        if getattr(settings, name) is not None and validation is None:
            raise ConfigError(f"validation must be given with a {name}, got None")
    home = device_of(model)
    where = torch.device(home if device is None else device)
    wake_up()
    started = clock(where)
    ranks = Ranks.of(model, where)
    work = shown = copy_of(model, where)
    dtype = float_dtype(shown)
    if dtype in NARROW and not ranks.many:  # judged and handed back in its own type
        work = _widened(work, labelled(data, ranks, torch.float32, settings.batch_size, seed))
    batches = labelled(data, ranks, float_dtype(work), settings.batch_size, seed)
    _check_lengths(batches, ranks)
    numbers = settings.learning_rate, settings.momentum, settings.weight_decay
    if validation is not None and not callable(validation):
        validation = labelled(validation, Ranks(where), dtype, 1000, seed, name="validation")
    frozen = _frozen(plain(work))
    bar = Progress("retraining", progress, settings.max_epochs)
    drawing = _own_random_numbers(where, seed + ranks.rank)
    with hold_zeros(work, masks), threads_for(work), evaluating(work), drawing, bar:
        loop = _RetrainLoop(
            model=work,
            optimiser=optimiser(learning(work)) if optimiser else sgd(plain(work), where, *numbers),
            loss=loss or _cross_entropy,
            batches=batches,
            ranks=ranks,
            started=started,
            passes=settings.max_epochs,
            decay=settings.decay,
            seconds=settings.seconds,
            check_every=settings.check_every,
            record=optimiser is None and loss is None,
            callback=bar.followed(callback, _shown),
            settings=settings,
            shown=shown,
            validation=validation,
        )
        work.train()
        for module in frozen:
            module.training = False
        try:
            stopped = loop.look() or loop.run()
        except (FetaError, torch.OutOfMemoryError):
            raise
        except Exception:
            _check_runs(shown, batches, validation)
            raise
        loop.restore_best()
    work.zero_grad(set_to_none=True)
    if shown is not work:
        _copy_state(work, shown)
    report = _report(loop, stopped, clock(where) - started, str(where), seed)
    return RetrainResult(shown if ranks.many else shown.to(home), report)


def _check_lengths(batches: Batches, ranks: Ranks) -> None:
    """Raise DataError where a process would wait for another one that has no more batches."""
    length = float(batches.length or 0)
    if ranks.any(ranks.sum([length]) != [length * ranks.count]):
        raise DataError(
            f"data must give as many batches in every process, got {batches.length} in process {ranks.rank} "
            "and another number elsewhere; use a DistributedSampler"
        )


@dataclass(kw_only=True)
class _RetrainLoop(Loop):
    """Judged by the validation data."""

    settings: Retraining
    shown: nn.Module  # what is judged: the model, or a copy of it in another type
    validation: Judge | None

    def judge(self) -> float | None:
        if self.validation is None:
            return None
        if self.shown is not self.model:
            _copy_state(self.model, self.shown)
        score = score_of(plain(self.shown), self.validation, self.ranks)
        if not math.isfinite(score):
            raise ConfigError(f"validation must give a finite number, got {score}")
        return score

    def after(self, seconds: float, passes: float, loss: float, score: float | None) -> tuple[Any, str | None]:
        goal, patience, reason = self.settings.goal, self.settings.patience, None
        if goal is not None and score is not None and score >= goal - self.settings.tolerance:
            reason = "recovered"
        elif patience is not None and passes - self.best_at >= patience:
            reason = "saturated"
        return RetrainPoint(seconds, passes, score), reason


def _report(loop: _RetrainLoop, stopped: str, seconds: float, device: str, seed: int) -> RetrainReport:
    settings = loop.settings
    return RetrainReport(
        seconds=seconds,
        evaluation_seconds=loop.judging,
        epochs=loop.history[-1].epoch,
        recovered=None if settings.goal is None else stopped == "recovered",
        goal=settings.goal,
        tolerance=settings.tolerance,
        start=loop.history[0].accuracy,
        accuracy=None if loop.validation is None else loop.best,
        history=tuple(loop.history),
        stopped=cast(Any, "epochs" if stopped == "passes" else stopped),
        device=device,
        seed=seed,
    )


def _shown(point: RetrainPoint) -> dict[str, Any]:
    """What a bar shows of a look at the validation data."""
    return {"completed": point.epoch, "note": "" if point.accuracy is None else f"validation {point.accuracy:.2f}"}


@contextmanager
def _own_random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, dropout and a loader's order follow from the seed; the caller's random numbers stay as they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _cross_entropy(output: Any, labels: Any) -> Tensor:
    scores = outputs_of(output)
    try:
        return F.cross_entropy(scores, labels)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        kind = f"{tuple(labels.shape)} {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        got = f"scores {tuple(scores.shape)} and labels {kind}: {one_line(error)}"
        raise DataError(f"data must have a class below the number of scores for each sample, got {got}") from error


def _check_runs(model: nn.Module, *given: Any) -> None:
    """Raise DataError where the model cannot run on the data, or has fewer scores than there are classes."""
    for batches in given:
        if isinstance(batches, TensorBatches | LoaderBatches):
            first = next(iter(batches.over()))
            with running(first.x), torch.no_grad(), evaluating(model):
                outputs = outputs_of(run_on(model, place(first.x, device_of(model), float_dtype(model))))
            y = first.y
            if isinstance(y, Tensor) and y.ndim == 1 and outputs.ndim == 2 and int(y.max()) >= outputs.shape[1]:
                got = f"class {int(y.max())} for {outputs.shape[1]} scores"
                raise DataError(f"data must have classes below the number of the model's scores, got {got}")


def _frozen(model: nn.Module) -> list[nn.Module]:
    """Layers in eval mode beside others in training mode, such as a frozen batch-norm: they are meant to stay so."""
    leaves = [module for module in model.modules() if not any(module.children())]
    training = any(leaf.training and any(True for _ in leaf.parameters()) for leaf in leaves)
    return [leaf for leaf in leaves if not leaf.training] if training else []


@torch.no_grad()
def _widened(model: nn.Module, batches: Batches) -> nn.Module:
    """A copy in float32, or the model itself if it does not run in it because it casts its inputs."""
    wide = copy.deepcopy(model).float()
    with suppress(RuntimeError), evaluating(wide):
        for batch in itertools.islice(batches.over(0), 1):
            run_on(wide, batch.x)
        return wide
    return model


def _copy_state(source: nn.Module, target: nn.Module) -> None:
    """Copy the state to a model of the same kind, in its own types, with the buffers that are never saved."""
    target.load_state_dict(source.state_dict())
    with torch.no_grad():
        for name, buffer in source.named_buffers():
            target.get_buffer(name).copy_(buffer)
