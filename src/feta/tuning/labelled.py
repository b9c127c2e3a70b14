"""Labelled data: batches to train on, and the accuracy on others.

Accepted are a pair of tensors (inputs, labels), which is put on the device once and batched by index, and a
loader: any iterable that can be passed over again, of (x, y) pairs or of dicts with labels among their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import LABEL_KEYS, size_of
from feta.calibration.model import evaluating, outputs_of, place, run_on
from feta.errors import ConfigError, DataError
from feta.tuning.loop import Batch
from feta.tuning.ranks import Ranks
from feta.tuning.stepping import order_of


class TensorBatches:
    """Rows of two tensors in an order drawn from (seed, number of the pass); each rank takes its share of them."""

    fixed = True

    def __init__(
        self, x: Tensor, y: Tensor, ranks: Ranks, batch_size: int, seed: int = 0, where: str = "data"
    ) -> None:
        if len(x) != len(y):
            raise ConfigError(f"{where} must be as many inputs as labels, got {len(x)} and {len(y)}")
        if len(x) < ranks.count:
            raise ConfigError(f"{where} must hold a sample for each process, got {len(x)} for {ranks.count}")
        self.x, self.y, self.ranks, self.batch_size, self.seed = x, y, ranks, batch_size, seed
        self.rows = len(x) // ranks.count  # the same for each rank: all must take as many steps
        if self.rows % batch_size == 1 and self.rows > batch_size > 1:
            self.rows -= 1  # batch-norm cannot train on a single row; each pass leaves out another one
        self.length: int | None = -(-self.rows // batch_size)

    def over(self, number: int) -> Iterator[Batch]:
        order = order_of(len(self.x), self.seed, number)
        return self._at(order[self.ranks.rank :: self.ranks.count][: self.rows])

    def in_order(self) -> Iterator[Batch]:
        return self._at(torch.arange(len(self.x)))

    def _at(self, order: Tensor) -> Iterator[Batch]:
        for rows in order.to(self.x.device).split(self.batch_size):
            yield Batch(self.x[rows], self.y[rows], len(rows))


class LoaderBatches:
    """The batches of a loader as they come; a distributed sampler is told the number of the pass."""

    fixed = False

    def __init__(self, loader: Any, ranks: Ranks, dtype: torch.dtype, where: str) -> None:
        if not isinstance(loader, Iterable):
            kind = type(loader).__name__
            raise ConfigError(f"{where} must be a pair of tensors or a loader of (x, y), got {kind}")
        if iter(loader) is loader:
            raise ConfigError(
                f"{where} must be readable once per epoch, got an iterator; pass a list or a loader"
            )
        self.loader, self.device, self.dtype, self.where = loader, ranks.device, dtype, where
        self.length: int | None = len(loader) if isinstance(loader, Sized) else None

    def over(self, number: int) -> Iterator[Batch]:
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:  # without it every epoch has the same order
            set_epoch(number)
        return self.in_order()

    def in_order(self) -> Iterator[Batch]:
        for batch in self.loader:
            x, y = _parts(batch, self.where)
            yield Batch(place(x, self.device, self.dtype), place(y, self.device, self.dtype), size_of(x))


def _parts(batch: Any, where: str) -> tuple[Any, Any]:
    """Inputs and labels."""
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        key = next((key for key in batch if key in LABEL_KEYS), None)
        if key is not None:
            return {name: part for name, part in batch.items() if name not in LABEL_KEYS}, batch[key]
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        if isinstance(batch[0], Tensor | Mapping):
            return batch[0], batch[1]
        kind = type(batch[0]).__name__
        raise ConfigError(f"{where} must yield x as a tensor or a dict of tensors, got a {kind}")
    raise ConfigError(f"{where} must yield (x, y) pairs or dicts with labels, got a {kind} without")


def batches_of(
    data: Any, ranks: Ranks, dtype: torch.dtype, batch_size: int, seed: int = 0, where: str = "data"
) -> TensorBatches | LoaderBatches:
    """The user's data as batches on the device of the ranks."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        x, y = place(data[0], ranks.device, dtype, copy=False), data[1].to(ranks.device)
        return TensorBatches(x, y, ranks, batch_size, seed, where)
    return LoaderBatches(data, ranks, dtype, where)


class Validation:
    """How good a model is: percent of right answers, or the number that the user's own function gives."""

    def __init__(self, data: Any, ranks: Ranks, dtype: torch.dtype) -> None:
        self.ranks = ranks
        self.function: Callable[[nn.Module], float] | None = data if callable(data) else None
        if self.function is None:
            self.batches = batches_of(data, Ranks(ranks.device), dtype, batch_size=1000, where="validation")

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """The score over the data of all ranks together."""
        with evaluating(model):
            if self.function is not None:
                score, ranks = self.ranks.sum([float(self.function(model)), 1.0])
                return score / ranks
            right, rows = torch.zeros((), dtype=torch.int64, device=self.ranks.device), 0
            for batch in self.batches.in_order():
                answers = right_answers(outputs_of(run_on(model, batch.x)), batch.y)
                right += answers.sum()
                rows += answers.numel()
        right_in_all, rows_in_all = self.ranks.sum([float(right), float(rows)])
        if rows_in_all == 0:
            raise DataError("validation must hold at least one sample, got none")
        return 100 * right_in_all / rows_in_all


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
