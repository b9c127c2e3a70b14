"""The user's labelled data as batches to train on, and as data to judge by.

A pair of tensors, or a loader of (x, y) pairs or of dicts with labels in them. Tensors are put on the device once
and drawn from in random order. Other data is passed over as it comes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from feta.calibration.given import LABEL_KEYS
from feta.calibration.inputs import generator_of, size_of
from feta.calibration.model import evaluating, outputs_of, place, run_on
from feta.errors import ConfigError, DataError
from feta.ranks import Ranks


class Batch(NamedTuple):
    """Inputs and targets of some samples."""

    x: Any
    y: Any
    size: int


class Batches(Protocol):
    """What a loop passes over."""

    @property
    def by_rows(self) -> bool:
        """Whether a length counts rows; else batches."""

    @property
    def fixed(self) -> bool:
        """Whether batches are tensors of one shape, but for the last of a pass."""

    @property
    def length(self) -> int | None:
        """Of a pass, if it is known."""

    def over(self, number: int) -> Iterator[Batch]:
        """A pass over the data in an order of its own."""


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
    fixed = True

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
    fixed = False

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
        if pair and isinstance(batch[0], Tensor) and isinstance(batch[1], int | float):
            raise ConfigError(f"{self.name} must yield batches, got a single sample; put a DataLoader around them")
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
    if not isinstance(data, Iterable) or isinstance(data, Tensor) or iter(data) is data:
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
