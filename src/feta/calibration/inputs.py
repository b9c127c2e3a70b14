"""The user's data as batches of model inputs, passed over as often as needed.

Accepted: a tensor; any iterable of tensors, (x, y) pairs or dicts, a DataLoader included. Labels are dropped. A
one-shot iterator, or a DataLoader that shuffles or samples, is read once and kept in a memory-mapped temporary file.
"""

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from feta.calibration.spill import Spill
from feta.errors import ConfigError, check_range

LABEL_KEYS = frozenset({"label", "labels", "target", "targets", "y"})

Batch = Tensor | dict[str, Tensor]


class Inputs:
    """Model inputs, batch by batch, the same on every pass; at most n_samples of them."""

    def __init__(self, data: Any, *, batch_size: int = 1000, n_samples: int | None = None, seed: int = 0) -> None:
        check_range("Inputs", ">= 1", n_samples=n_samples, batch_size=batch_size)
        self._limit = n_samples
        if isinstance(data, Tensor):
            self._batches: Iterable[Any] = _tensor_batches(data, batch_size, n_samples, seed)
        elif isinstance(data, str | bytes) or not isinstance(data, Iterable):
            raise ConfigError(f"data must be a tensor or an iterable of batches, got {type(data).__name__}")
        elif _same_every_pass(data):
            self._batches = data
        else:
            self._batches = Spill(_limited((_model_input(b) for b in data), n_samples))
        if not any(size_of(batch) for batch in self):
            raise ConfigError("data must hold at least one sample, got none")

    def __iter__(self) -> Iterator[Batch]:
        yield from _limited((_model_input(batch) for batch in self._batches), self._limit)

    def thinned(self, stride: int, start: int = 0) -> "Inputs":
        """Every stride-th sample, whatever the batches: a share of each batch, not a share of the batches."""
        view = copy.copy(self)
        view._batches, view._limit = _Thinned(self, stride, start), None
        return view


@dataclass(frozen=True)
class _Thinned:
    inputs: Inputs
    stride: int
    start: int = 0

    def __iter__(self) -> Iterator[Batch]:
        seen = -self.start
        for batch in self.inputs:
            part = rows_of(batch, slice(max(-seen, -seen % self.stride), None, self.stride))
            seen += size_of(batch)
            if size_of(part):
                yield part


@dataclass(frozen=True)
class Merged:
    """Batches of about `size` samples out of smaller ones; only plain tensors of one shape are merged."""

    inputs: Iterable[Batch]
    size: int = 256

    def __iter__(self) -> Iterator[Batch]:
        held: list[Tensor] = []
        for batch in self.inputs:
            fits = isinstance(batch, Tensor) and all(batch.shape[1:] == part.shape[1:] for part in held)
            if held and (not fits or sum(map(len, held)) >= self.size):
                yield torch.cat(held)
                held = []
            if isinstance(batch, Tensor):
                held.append(batch)
            else:
                yield batch
        if held:
            yield torch.cat(held)


def _tensor_batches(data: Tensor, batch_size: int, n_samples: int | None, seed: int) -> list[Tensor]:
    if data.ndim < 2:
        raise ConfigError(f"data must have samples as rows (2 or more dimensions), got shape {tuple(data.shape)}")
    if n_samples is not None and n_samples < len(data):
        # A seeded subset, in the data's order: the first rows of a sorted file would be one class.
        chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:n_samples]
        data = data[chosen.sort().values.to(data.device)]
    return list(data.split(batch_size))


def _same_every_pass(data: Iterable[Any]) -> bool:
    if isinstance(data, DataLoader):
        # Only the plain order is known to repeat: any other sampler, or a stream, may differ on each pass.
        batches = data.batch_sampler
        order = data.sampler if batches is None else getattr(batches, "sampler", None)
        return type(order) is SequentialSampler and type(batches) in (BatchSampler, NoneType)
    return iter(data) is not data


def _model_input(batch: Any) -> Batch:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in LABEL_KEYS}
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0]
    raise ConfigError(f"data must yield tensors, (x, y) pairs or dicts, got a batch of type {type(batch).__name__}")


def _limited(batches: Iterable[Batch], n_samples: int | None) -> Iterator[Batch]:
    left = sys.maxsize if n_samples is None else n_samples
    for batch in batches:
        yield batch if size_of(batch) <= left else rows_of(batch, slice(left))
        left -= size_of(batch)
        if left <= 0:
            return


def size_of(batch: Tensor | Mapping[str, Any]) -> int:
    """The number of samples in a batch."""
    if isinstance(batch, Tensor):
        return len(batch)
    return next((len(v) for v in batch.values() if isinstance(v, Tensor) and v.ndim), 1)


def rows_of(batch: Batch, rows: slice | Tensor) -> Batch:
    """Some of the samples of a batch; an entry that is not per sample stays as it is."""
    if isinstance(batch, Tensor):
        return batch[rows]
    size = size_of(batch)
    return {k: v[rows] if isinstance(v, Tensor) and v.ndim and len(v) == size else v for k, v in batch.items()}
