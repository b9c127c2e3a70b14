"""The user's data as batches of model inputs, passed over as often as needed.

Accepted: a tensor or a dict of tensors; any iterable of tensors, (x, y) pairs or dicts, a DataLoader included. Labels
are dropped, unless forward cannot do without: of a model with several inputs a tuple holds one after the other. A
one-shot iterator, or a DataLoader that shuffles or samples, is read once and kept in a memory-mapped temporary file.
"""

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from feta.calibration.given import Batch as Batch
from feta.calibration.given import all_samples, left_out, model_input, names_of
from feta.calibration.spill import Spill
from feta.errors import ConfigError, NotData, check_range, warn
from feta.ranks import ALONE, Ranks

BATCH_ENTRIES, BATCH_SAMPLES = 2**20, 1000  # of a batch of inputs, at the most: 340 small images
TOKEN = 128  # entries that a whole number stands for: it is looked up in a table
HELD_SHARE = 10  # one in so many samples is kept for judging, the rest are fitted
HELD_SAMPLES = 1024  # at the most
OFTEN, FEWEST = 10, 4  # copies of a sample that is always fitted; different samples that are held out at the least


class Inputs:
    """Model inputs, batch by batch, the same on every pass; at most n_samples of them.

    Samples have numbers, which are the same in every process of a job.
    """

    ranks: Ranks = ALONE  # with which the samples are shared
    whole: "Inputs"  # all of them, where these are one process's share

    def __init__(
        self,
        data: Any,
        *,
        model: nn.Module | None = None,
        batch_size: int | None = None,
        n_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        check_range("Inputs", ">= 1", n_samples=n_samples, batch_size=batch_size)
        self._limit, self._names, self.whole, self._said = n_samples, names_of(model), self, False
        whole = all_samples(data, self._names.required)
        if whole is not None:
            self._batches: Iterable[Any] = _cut(whole, batch_size, n_samples, seed)
        elif isinstance(data, str | bytes) or not isinstance(data, Iterable):
            cure = "; write torch.utils.data.DataLoader(data, batch_size=100)" if isinstance(data, Dataset) else ""
            raise NotData(f"data must be a tensor or an iterable of batches, got {type(data).__name__}{cure}")
        elif _same_every_pass(data):
            self._batches = data
        else:
            self._batches = Spill(_limited(map(self._input, data), n_samples))
        if not any(size_of(batch) for batch in self):
            raise NotData("data must hold at least one sample, got none; a generator may have been used before")
        if whole is None and self._batches is data and not any(True for _ in self):
            raise NotData(
                f"data must give its batches on every pass, got none on the second of a {type(data).__name__}"
            )

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch, _ in self.numbered())

    def numbered(self) -> Iterator[tuple[Batch, Tensor]]:
        """The batches, with the numbers of their samples."""
        if isinstance(self._batches, _Share):
            yield from self._batches
            return
        seen = 0
        for batch in _limited(map(self._input, self._batches), self._limit):
            yield batch, torch.arange(seen, seen := seen + size_of(batch))

    def _input(self, batch: Any) -> Batch:
        """What the model is given of a batch."""
        if not self._said and (name := left_out(batch, self._names)) is not None:
            self._said = True
            warn(
                f"of each pair only the first part is given to the model; is the second its '{name}'? Pass dicts then"
            )
        return model_input(batch, self._names.required)

    @cached_property
    def count(self) -> int:
        """The number of samples, those of the other processes included."""
        return sum(size_of(batch) for batch in self.whole)

    def drawn(self, stride: int, start: int = 0) -> "Inputs":
        """One in `stride` samples, whatever the batches and the order of the data: those whose place in a random
        order is start, start + stride, …; other starts draw others."""
        places = places_of(self.count)
        return self.picked((places >= start) & ((places - start) % stride == 0))

    def picked(self, chosen: Tensor) -> "Inputs":
        """The samples that are chosen, (count,) bool, in their order."""
        return self._view(_Picked(self.whole, chosen)).share(self.ranks)

    def share(self, ranks: Ranks) -> "Inputs":
        """This process's samples: every so many-th batch."""
        if not ranks.many:
            return self
        view = self._view(_Share(self.whole, ranks))
        view.whole, view.ranks = self.whole, ranks
        return view

    def split(self, marks: Tensor | None = None) -> "tuple[Inputs, Inputs | None]":
        """Samples to fit and samples to judge by, at random; of very few all are fitted.

        A sample that is there several times is judged by once, and then never fitted; one that is there very often is
        fitted, or what matters most would be seen by chance.
        marks: of all samples, where they are known.
        """
        marks = torch.cat([marks_of(batch) for batch in self]) if marks is None else marks
        self.count = len(marks)
        if self.count < 4:
            return self, None
        judged = places_of(self.count) % max(HELD_SHARE, -(-self.count // HELD_SAMPLES)) == 0
        kinds, kind, copies = marks.unique(return_inverse=True, return_counts=True)
        order = torch.arange(self.count)
        first = torch.full_like(kinds, self.count).scatter_reduce(0, kind, order, "amin")[kind]
        often = copies[kind] > min(max(OFTEN, self.count // 100), max(1, self.count // 10))
        known = judged[first] & ~often
        held = known & (first == order)
        if held.sum() < min(FEWEST, judged.sum()):  # hardly any samples differ
            return self.picked(~judged), self.picked(judged)
        return self.picked(~known), self.picked(held)

    def _view(self, batches: Iterable[Any]) -> "Inputs":
        view = copy.copy(self)
        view.__dict__.pop("count", None)
        view._batches, view._limit, view.whole, view.ranks = batches, None, view, ALONE
        return view


@dataclass(frozen=True)
class _Picked:
    inputs: Inputs
    chosen: Tensor

    def __iter__(self) -> Iterator[Batch]:
        for batch, numbers in self.inputs.numbered():
            rows = self.chosen[numbers].nonzero()[:, 0]
            if len(rows):
                yield rows_of(batch, rows)


@dataclass(frozen=True)
class _Share:
    """The batches that are this process's, with the numbers of their samples."""

    inputs: Inputs
    ranks: Ranks

    def __iter__(self) -> Iterator[tuple[Batch, Tensor]]:
        yield from shared_out(self.inputs, self.ranks)


def shared_out(batches: Iterable[Batch], ranks: Ranks) -> Iterator[tuple[Batch, Tensor]]:
    """Of batches that all processes have, this one's, with the numbers of their samples among all.

    Whole batches: products of other numbers of rows are rounded differently.
    """
    seen = 0
    for index, batch in enumerate(batch for batch in batches if size_of(batch)):
        numbers = torch.arange(seen, seen := seen + size_of(batch))
        if index % ranks.count == ranks.rank:
            yield batch, numbers


def places_of(count: int) -> Tensor:
    """The place of each of so many samples in a random order, always the same one."""
    places = torch.empty(count, dtype=torch.int64)
    places[torch.randperm(count, generator=torch.Generator().manual_seed(count))] = torch.arange(count)
    return places


def fitting_size(batch: Batch, budget: float = 1.0) -> int:
    """How many samples like those of a batch run well at once: a network makes much more of each than it is given.

    budget: a share of what is usual.
    """
    entries = sum(v.numel() * (1 if v.is_floating_point() else TOKEN) for v in _parts(batch)) / max(size_of(batch), 1)
    return max(1, int(min(BATCH_SAMPLES * max(1.0, budget), budget * BATCH_ENTRIES / max(entries, 1))))


def marks_of(batch: Batch) -> Tensor:
    """A number for each sample of a batch; equal samples have equal ones, others hardly ever."""
    count = size_of(batch)
    parts = [part.detach() for part in _parts(batch) if part.ndim and len(part) == count and part.numel()]
    rows = [part.reshape(count, -1).resolve_conj().cpu().contiguous().view(torch.uint8).numpy() for part in parts]
    marks = [hash(tuple(row[index].tobytes() for row in rows)) for index in range(count)]
    return torch.tensor(marks, dtype=torch.int64)


def tokens_of(batch: Batch) -> int:
    """How many whole numbers a sample of a batch holds: of a text, its length; 0 for images."""
    counts = (v.numel() // max(len(v), 1) for v in _parts(batch) if v.ndim > 1 and not v.is_floating_point())
    return max(counts, default=0)


@dataclass(frozen=True)
class Merged:
    """Batches of as many samples as run well at once, out of smaller ones whose tensors have one shape."""

    inputs: Iterable[Batch]
    budget: float = 1.0  # a share of what is usual
    cut: bool = False  # whether larger batches are cut to that size

    def __iter__(self) -> Iterator[Batch]:
        held: list[Batch] = []
        for batch in self.inputs:
            room = fitting_size(batch, self.budget)
            if self.cut and size_of(batch) > room:
                if held:
                    yield joined(held)
                held = []
                for rows in torch.arange(size_of(batch)).split(room):
                    yield rows_of(batch, rows)
                continue
            if held and (not alike(held[0], batch) or sum(map(size_of, held)) + size_of(batch) > room):
                yield joined(held)
                held = []
            held.append(batch)
        if held:
            yield joined(held)


def _parts(batch: Batch) -> list[Tensor]:
    return [v for v in (batch.values() if isinstance(batch, Mapping) else [batch]) if isinstance(v, Tensor)]


def alike(one: Batch, other: Batch) -> bool:
    """Whether two batches can be one: tensors with samples as rows, of the same shapes otherwise."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
    if not isinstance(one, dict) or not isinstance(other, dict) or list(one) != list(other):
        return False

    def per_sample(batch: Mapping[str, Any]) -> bool:
        return all(isinstance(v, Tensor) and v.ndim and len(v) == size_of(batch) for v in batch.values())

    if not per_sample(one) or not per_sample(other):
        return False
    return all((one[key].shape[1:], one[key].dtype) == (other[key].shape[1:], other[key].dtype) for key in one)


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches that are alike as one."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(batches)  # type: ignore[arg-type]
    return {key: torch.cat([batch[key] for batch in batches]) for key in first}  # type: ignore[index]


def _cut(data: Batch, batch_size: int | None, n_samples: int | None, seed: int) -> list[Batch]:
    if isinstance(data, Tensor) and data.ndim < 2:
        cure = "" if data.is_floating_point() else "; if these are labels, give the inputs"
        raise ConfigError(
            f"data must have samples as rows (2 or more dimensions), got shape {tuple(data.shape)}{cure}"
        )
    if n_samples is not None and n_samples < size_of(data):
        data = rows_of(data, drawn(size_of(data), n_samples, seed))
    step = batch_size or fitting_size(data)
    return [rows_of(data, slice(start, start + step)) for start in range(0, size_of(data), step)]


def drawn(count: int, wanted: int | None, seed: int) -> Tensor:
    """Which of so many samples are used: a seeded draw, in their order.

    The first rows of a sorted file would be one class.
    """
    if wanted is None or wanted >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:wanted].sort().values


def generator_of(seed: int, number: int, where: torch.device | str = "cpu") -> torch.Generator:
    """Random numbers that belong to a seed and a number, such as that of a pass or of a sample."""
    return torch.Generator(where).manual_seed((seed * 1_000_003 + number) % 2**63)


def _same_every_pass(data: Iterable[Any]) -> bool:
    if isinstance(data, DataLoader):
        # Only the plain order is known to repeat: any other sampler, or a stream, may differ on each pass.
        batches = data.batch_sampler
        order = data.sampler if batches is None else getattr(batches, "sampler", None)
        return type(order) is SequentialSampler and type(batches) in (BatchSampler, NoneType)
    return iter(data) is not data


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

    def part(value: Tensor) -> Tensor:
        return value[rows.to(value.device) if isinstance(rows, Tensor) else rows]

    if isinstance(batch, Tensor):
        return part(batch)
    size = size_of(batch)
    return {k: part(v) if isinstance(v, Tensor) and v.ndim and len(v) == size else v for k, v in batch.items()}
