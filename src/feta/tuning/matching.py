"""Rows for refinement: inputs of a network with the outputs of the original, and some of them held out.

A tensor is put on the device once and drawn from in random order; the original's outputs are computed once
when they take no more room than the inputs. Any other data is passed over in its batches, shuffled within
each, and the original runs beside. Every stride-th row is held out, 2000 at the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch, Inputs, per_sample, size_of
from feta.calibration.model import float_dtype, outputs_of, place, run_on
from feta.errors import ConfigError
from feta.tuning.stepping import generator_of, order_of

HELD_OUT_ROWS = 2000
HELD_OUT_VALUES = 2**26  # entries of inputs among them

Matched = tuple[Any, Tensor, int]  # inputs, the original's outputs, how many


@dataclass(frozen=True)
class Original:
    """The network whose outputs are to be matched, and where its twin works."""

    model: nn.Module
    device: torch.device
    dtype: torch.dtype  # of the twin

    @torch.no_grad()
    def outputs(self, x: Any) -> Tensor:
        x = place(x, self.device, float_dtype(self.model))
        return outputs_of(run_on(self.model, x)).to(self.dtype)


class Rows(Protocol):
    """Rows to fit, and rows to judge by."""

    fixed: bool  # whether batches have one shape, all on the device
    count: int  # of rows to fit

    def batches(self, number: int, batch_size: int) -> Iterator[Matched]:
        """A pass over the rows to fit, in an order of its own."""

    def held_out(self) -> Iterator[Matched]: ...


def rows_of(data: Any, original: Original, share: float, n_samples: int | None, seed: int) -> Rows:
    """The user's data as rows; a share of them held out."""
    inputs = Inputs(data, n_samples=n_samples, seed=seed)
    if not isinstance(data, Tensor):
        return StreamRows(inputs, original, share, seed)
    if n_samples is not None and n_samples < len(data):
        data = torch.cat([batch for batch in inputs if isinstance(batch, Tensor)])
    return TensorRows(data, original, share, seed)


class TensorRows:
    """Rows of one tensor."""

    fixed = True

    def __init__(self, data: Tensor, original: Original, share: float, seed: int) -> None:
        self.x = place(data, original.device, original.dtype, copy=False)
        self.original, self.seed = original, seed
        held = _held_out(len(data), _stride(len(data), share, data[0].numel()))
        self.fit = (~held).nonzero().squeeze(1).to(original.device)
        self.judge = held.nonzero().squeeze(1).to(original.device)
        self.count = len(self.fit)
        first = original.outputs(self.x[:1])
        self.targets = None
        if first[0].numel() <= self.x[0].numel():
            self.targets = torch.cat([original.outputs(part) for part in self.x.split(1000)])

    def batches(self, number: int, batch_size: int) -> Iterator[Matched]:
        order = self.fit[order_of(self.count, self.seed, number).to(self.fit.device)]
        yield from self._at(order, batch_size)

    def held_out(self) -> Iterator[Matched]:
        yield from self._at(self.judge, 1000)

    def _at(self, order: Tensor, batch_size: int) -> Iterator[Matched]:
        for rows in order.split(batch_size):
            x = self.x[rows]
            targets = self.original.outputs(x) if self.targets is None else self.targets[rows]
            yield x, targets, len(rows)


class StreamRows:
    """Rows of batches that are passed over again and again."""

    fixed = False

    def __init__(self, inputs: Inputs, original: Original, share: float, seed: int) -> None:
        self.inputs, self.original, self.seed = inputs, original, seed
        total = sum(size_of(batch) for batch in inputs)
        width = _values(next(iter(inputs)))
        self.stride = _stride(total, share, width)
        self.count = total - int(_held_out(total, self.stride).sum())
        self.judge: list[Matched] = []

    def batches(self, number: int, batch_size: int) -> Iterator[Matched]:
        generator = generator_of(self.seed, number)
        for batch, held in self._split():
            rows = (~held).nonzero().squeeze(1)
            rows = rows[torch.randperm(len(rows), generator=generator)]
            for part in rows.split(batch_size) if len(rows) else ():
                yield self._matched(_pick(batch, part))

    def held_out(self) -> Iterator[Matched]:
        """Kept after the first look: they are few, and a look is not worth another pass over the data."""
        if not self.judge:
            picked = ((batch, held.nonzero().squeeze(1)) for batch, held in self._split())
            self.judge = [self._matched(_pick(batch, rows)) for batch, rows in picked if len(rows)]
        for x, targets, size in self.judge:
            yield place(x, self.original.device, self.original.dtype), targets, size

    def _split(self) -> Iterator[tuple[Batch, Tensor]]:
        seen = 0
        for batch in self.inputs:
            size = size_of(batch)
            yield batch, _held_out(size, self.stride, seen)
            seen += size

    def _matched(self, x: Batch) -> Matched:
        place_ = self.original
        return place(x, place_.device, place_.dtype), place_.outputs(x), size_of(x)


def _stride(total: int, share: float, values: int) -> int:
    if total < 2:
        raise ConfigError(f"data must hold 2 or more samples to refine on, one to judge by, got {total}")
    at_most = max(1, min(HELD_OUT_ROWS, HELD_OUT_VALUES // max(values, 1)))
    return max(2, round(1 / share), -(-total // at_most))


def _held_out(size: int, stride: int, start: int = 0) -> Tensor:
    """Which of the rows from number `start` on are held out."""
    return torch.arange(start, start + size) % stride == 0


def _values(batch: Batch) -> int:
    parts = [batch] if isinstance(batch, Tensor) else [v for v in batch.values() if isinstance(v, Tensor)]
    return sum(part[0].numel() for part in parts if part.ndim)


def _pick(batch: Batch, rows: Tensor) -> Batch:
    if isinstance(batch, Tensor):
        return batch[rows.to(batch.device)]
    size = size_of(batch)
    return {
        key: value[rows.to(value.device)] if per_sample(value, size) else value
        for key, value in batch.items()
    }
