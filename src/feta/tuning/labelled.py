"""Labelled data: batches to train on, and the accuracy on others.

Accepted: a pair of tensors (inputs, labels), put on the device once and batched by index; or a loader, any
iterable that can be passed over again, of (x, y) pairs or of dicts with the labels among their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from feta.calibration.inputs import LABEL_KEYS, size_of
from feta.calibration.model import evaluating, outputs_of, place, run_on
from feta.errors import ConfigError, DataError
from feta.tuning.ranks import Ranks
from feta.tuning.stepping import order_of

Labelled = tuple[Any, Any, int]  # inputs, labels, how many


class Batches(Protocol):
    """Labelled batches, one pass per epoch."""

    fixed: bool  # whether they have one shape, all on the device
    count: int | None  # in an epoch, where that is known

    def epoch(self, number: int) -> Iterator[Labelled]: ...


def batches_of(
    data: Any, ranks: Ranks, dtype: torch.dtype, *, batch_size: int, seed: int, where: str = "data"
) -> Batches:
    """The user's data as batches on the device of the ranks."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return TensorBatches(data[0], data[1], ranks, dtype, batch_size, seed, where)
    return LoaderBatches(data, ranks, dtype, where)


class TensorBatches:
    """Rows of two tensors in an order drawn from (seed, epoch); each rank takes its share of them."""

    fixed = True

    def __init__(
        self, x: Tensor, y: Tensor, ranks: Ranks, dtype: torch.dtype, batch_size: int, seed: int, where: str
    ) -> None:
        if len(x) != len(y):
            raise ConfigError(f"{where} must be as many inputs as labels, got {len(x)} and {len(y)}")
        if len(x) < ranks.count:
            raise ConfigError(f"{where} must hold a sample for each process, got {len(x)} for {ranks.count}")
        self.x, self.y = place(x, ranks.device, dtype, copy=False), y.to(ranks.device)
        self.ranks, self.batch_size, self.seed = ranks, batch_size, seed
        self.rows = len(x) // ranks.count  # the same for each rank: all must take as many steps
        if self.rows % batch_size == 1 and self.rows > batch_size > 1:
            self.rows -= (
                1  # batch-norm cannot train on a single row; the order leaves out another one each time
            )
        self.count: int | None = -(-self.rows // batch_size)

    def epoch(self, number: int) -> Iterator[Labelled]:
        order = order_of(len(self.x), self.seed, number)
        mine = order[self.ranks.rank :: self.ranks.count][: self.rows].to(self.x.device)
        for rows in mine.split(self.batch_size):
            yield self.x[rows], self.y[rows], len(rows)

    def in_order(self) -> Iterator[Labelled]:
        for x, y in zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True):
            yield x.clone(), y, len(y)


class LoaderBatches:
    """The batches of a loader as they come; a distributed sampler is told the epoch."""

    fixed = False

    def __init__(self, loader: Any, ranks: Ranks, dtype: torch.dtype, where: str) -> None:
        if not isinstance(loader, Iterable):
            kind = type(loader).__name__
            raise ConfigError(f"{where} must be a pair of tensors or a loader of (x, y), got {kind}")
        if iter(loader) is loader:
            raise ConfigError(
                f"{where} must be readable once per epoch, got an iterator; pass a list or a loader"
            )
        self.loader, self.ranks, self.dtype, self.where = loader, ranks, dtype, where
        self.count: int | None = len(loader) if isinstance(loader, Sized) else None

    def epoch(self, number: int) -> Iterator[Labelled]:
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:  # or else every epoch has the same order
            set_epoch(number)
        return self.in_order()

    def in_order(self) -> Iterator[Labelled]:
        for batch in self.loader:
            x, y = self._parts(batch)
            if not isinstance(x, Tensor | Mapping):
                kind = type(x).__name__
                raise ConfigError(f"{self.where} must yield x as a tensor or a dict of tensors, got a {kind}")
            yield place(x, self.ranks.device, self.dtype), place(y, self.ranks.device, self.dtype), size_of(x)

    def _parts(self, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, Mapping):
            key = next((key for key in batch if key in LABEL_KEYS), None)
            if key is not None:
                return {name: part for name, part in batch.items() if name not in LABEL_KEYS}, batch[key]
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            return batch[0], batch[1]
        kind = type(batch).__name__
        raise ConfigError(f"{self.where} must yield (x, y) pairs or dicts with labels, got a {kind} without")


class Validation:
    """How good a model is: percent of right answers, or what the user's own function says."""

    def __init__(self, data: Any, ranks: Ranks, dtype: torch.dtype) -> None:
        self.ranks = ranks
        self.function: Callable[[nn.Module], float] | None = None
        if callable(data):
            self.function = data
        else:
            self.batches: Any = batches_of(
                data, Ranks(ranks.device), dtype, batch_size=1000, seed=0, where="validation"
            )

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """Over the data of all ranks together."""
        with evaluating(model):
            if self.function is not None:
                score, ranks = self.ranks.sum([float(self.function(model)), 1.0])
                return score / ranks
            right, rows = torch.zeros((), dtype=torch.int64, device=self.ranks.device), 0
            for x, y, _ in self.batches.in_order():
                answers = right_answers(outputs_of(run_on(model, x)), y)
                right += answers.sum()
                rows += answers.numel()
            total = self.ranks.sum([float(right), float(rows)])
        if total[1] == 0:
            raise DataError("validation must hold at least one sample, got none")
        return 100 * total[0] / total[1]


def right_answers(scores: Tensor, labels: Any) -> Tensor:
    """Which answers are right, classes in dimension 1 as cross-entropy has them; labels may be probabilities."""
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
