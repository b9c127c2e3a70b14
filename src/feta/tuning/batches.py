"""The user's data as batches to train on, and as data to judge by.

    retraining   (inputs, labels): a pair of tensors, or a loader of (x, y) pairs or of dicts with labels in them
    refinement   (inputs, the original's outputs), of data as for `feta.prune`; every stride-th row is held out

Tensors are put on the device once and drawn from in random order. Other data is passed over as it comes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feta.calibration.given import LABEL_KEYS
from feta.calibration.inputs import Inputs, places_of, rows_of, size_of
from feta.calibration.model import call, evaluating, float_dtype, outputs_of, place, run_on
from feta.errors import ConfigError, DataError
from feta.tuning.stepping import Ranks, generator_of

HELD_OUT_ROWS = 2000  # at the most
HELD_OUT_VALUES = 2**26  # entries of inputs in all of them


class Batch(NamedTuple):
    """Inputs and targets of some samples.

    A class of batches has `over(number)`, a pass over the data in an order of its own, or without a number in the
    data's order; `length`, of a pass, if it is known; and `by_rows`, whether that counts rows or batches.
    """

    x: Any
    y: Any
    size: int


@dataclass
class TensorBatches:
    """Rows of a tensor with their targets, in an order drawn from (seed, number of the pass)."""

    x: Tensor
    targets: Callable[[Tensor], Tensor]  # of the rows with these numbers
    rows: Tensor  # the numbers of the rows to draw
    batch_size: int
    seed: int
    ranks: Ranks  # each takes its share of the rows
    by_rows: bool  # then a last batch may be a single row

    def __post_init__(self) -> None:
        self.count = len(self.rows) // self.ranks.count  # the same for each rank: all must take as many steps
        if not self.by_rows and self.count % self.batch_size == 1 and self.count > self.batch_size > 1:
            self.count -= 1  # batch-norm cannot train on a single row; each pass leaves out another one
        self.length: int | None = self.count if self.by_rows else -(-self.count // self.batch_size)

    def over(self, number: int | None = None) -> Iterator[Batch]:
        rows = self.rows
        if number is not None:
            order = torch.randperm(len(rows), generator=generator_of(self.seed, number))
            rows = rows[order[self.ranks.rank :: self.ranks.count][: self.count].to(rows.device)]
        for part in rows.split(self.batch_size):
            yield Batch(self.x[part], self.targets(part), len(part))


@dataclass
class LoaderBatches:
    """The batches of a loader as they come; a distributed sampler is told the number of the pass."""

    loader: Iterable[Any]
    device: torch.device
    dtype: torch.dtype
    name: str
    by_rows = False

    def __post_init__(self) -> None:
        self.length: int | None = len(self.loader) if isinstance(self.loader, Sized) else None

    def over(self, number: int | None = None) -> Iterator[Batch]:
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None and number is not None:  # without it every epoch has the same order
            set_epoch(number)
        for batch in self.loader:
            x, y = self._parts(batch)
            yield Batch(place(x, self.device, self.dtype), place(y, self.device, self.dtype), size_of(x))

    def _parts(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and labels."""
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        if pair and isinstance(batch[0], Tensor | Mapping):
            return batch[0], batch[1]
        if isinstance(batch, Mapping) and not LABEL_KEYS.isdisjoint(batch):
            labels = next(part for key, part in batch.items() if key in LABEL_KEYS)
            return {key: part for key, part in batch.items() if key not in LABEL_KEYS}, labels
        got = f"{type(batch[0]).__name__} as x" if pair else f"{type(batch).__name__} without"
        raise ConfigError(
            f"{self.name} must yield (x, y) pairs, x a tensor or a dict of tensors, or dicts with labels, got a {got}"
        )


def labelled(
    data: Any, ranks: Ranks, dtype: torch.dtype, batch_size: int, seed: int, by_rows: bool = False, name: str = "data"
) -> TensorBatches | LoaderBatches:
    """Labelled data as batches on the device of the ranks."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        x, y = place(data[0], ranks.device, dtype, copy=False), data[1].to(ranks.device)
        if len(x) != len(y):
            raise ConfigError(f"{name} must be as many inputs as labels, got {len(x)} and {len(y)}")
        if len(x) < ranks.count:
            raise ConfigError(f"{name} must hold a sample for each process, got {len(x)} for {ranks.count}")
        rows = torch.arange(len(x), device=ranks.device)
        return TensorBatches(x, lambda rows: y[rows], rows, batch_size, seed, ranks, by_rows)
    if not isinstance(data, Iterable) or iter(data) is data:
        kind = type(data).__name__
        raise ConfigError(
            f"{name} must be a pair of tensors, or a loader or list of (x, y) to read in every epoch, got {kind}"
        )
    return LoaderBatches(data, ranks.device, dtype, name)


Judge = Callable[[nn.Module], float] | TensorBatches | LoaderBatches


@torch.no_grad()
def score_of(model: nn.Module, judge: Judge, ranks: Ranks) -> float:
    """The score over all ranks: percent of right answers, or the mean of what the user's own function gives."""
    with evaluating(model):
        if callable(judge):
            total, count = float(judge(model)), 1.0
        else:
            right = [right_answers(outputs_of(run_on(model, batch.x)), batch.y) for batch in judge.over()]
            total = 100 * float(sum(part.sum() for part in right))
            count = float(sum(part.numel() for part in right))
    total, count = ranks.sum([total, count])
    if count == 0:
        raise DataError("validation must hold at least one sample, got none")
    return total / count


def right_answers(scores: Tensor, labels: Any) -> Tensor:
    """Which answers are right; classes are in dimension 1, as for cross-entropy, and labels may be probabilities."""
    if isinstance(labels, Tensor) and scores.ndim > 1:
        if labels.is_floating_point() and labels.shape == scores.shape:
            labels = labels.argmax(1)
        answers = scores.argmax(1)
        whole = not labels.is_floating_point() or bool((labels == labels.round()).all())
        if whole and answers.shape == labels.shape:
            return answers.eq(labels)
    got = f"{tuple(labels.shape)} {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
    raise ConfigError(
        "validation must have a class for each answer, and the model's scores their classes in dimension 1, "
        f"got labels {got} and outputs {tuple(scores.shape)}; or pass a function of the model"
    )


@dataclass(frozen=True)
class Original:
    """The network whose outputs are matched, and where the network that is fitted works."""

    model: nn.Module
    device: torch.device
    dtype: torch.dtype  # of the network that is fitted

    @torch.no_grad()
    def outputs(self, x: Any) -> Tensor:
        return outputs_of(call(self.model, x, self.device, float_dtype(self.model))).to(self.dtype)

    def matched(self, x: Any) -> Batch:
        return Batch(place(x, self.device, self.dtype), self.outputs(x), size_of(x))


@dataclass
class StreamBatches:
    """The rows of batches that are not held out, each batch shuffled by itself, with the original's outputs."""

    inputs: Inputs
    original: Original
    stride: int
    batch_size: int
    seed: int
    length: int | None
    by_rows = True

    def over(self, number: int) -> Iterator[Batch]:
        generator, places, seen = generator_of(self.seed, number), places_of(self.inputs.count), 0
        for batch in self.inputs:
            size = size_of(batch)
            rows = (places[seen : seen + size] % self.stride).nonzero().squeeze(1)
            rows = rows[torch.randperm(len(rows), generator=generator)]
            seen += size
            for part in rows.split(self.batch_size) if len(rows) else ():
                yield self.original.matched(rows_of(batch, part))


Batches = TensorBatches | LoaderBatches | StreamBatches


def matched(
    data: Any, original: Original, share: float, batch_size: int, n_samples: int | None, seed: int
) -> tuple[TensorBatches | StreamBatches, Callable[[], Iterable[Batch]]]:
    """Unlabelled data with the original's outputs: batches to fit, and a share of the rows to judge by."""
    inputs = Inputs(data, model=original.model, n_samples=n_samples, seed=seed)
    first, total = next(iter(inputs)), inputs.count
    if total < 2:
        raise ConfigError(f"data must hold 2 or more samples to refine on, one to judge by, got {total}")
    parts = first.values() if isinstance(first, dict) else [first]
    values = sum(part[0].numel() for part in parts if isinstance(part, Tensor) and part.ndim)
    at_most = max(1, min(HELD_OUT_ROWS, HELD_OUT_VALUES // max(values, 1)))
    stride = max(2, round(1 / share), -(-total // at_most))
    if not isinstance(data, Tensor):
        held = [original.matched(batch) for batch in inputs.drawn(stride)]
        length = total - sum(batch.size for batch in held)
        return StreamBatches(inputs, original, stride, batch_size, seed, length), lambda: held
    if total < len(data):
        data = torch.cat([batch for batch in inputs if isinstance(batch, Tensor)])
    x = place(data, original.device, original.dtype, copy=False)
    # The original's outputs are computed once if they take no more room than the inputs.
    small = original.outputs(x[:1])[0].numel() <= x[0].numel()
    outputs = torch.cat([original.outputs(part) for part in x.split(1000)]) if small else None

    def targets(rows: Tensor) -> Tensor:
        return original.outputs(x[rows]) if outputs is None else outputs[rows]

    fitted = places_of(total).to(x.device) % stride > 0
    rows, held_out = (part.nonzero().squeeze(1) for part in (fitted, ~fitted))
    batches = TensorBatches(x, targets, rows, batch_size, seed, Ranks(x.device), by_rows=True)
    return batches, replace(batches, rows=held_out, batch_size=1000).over
