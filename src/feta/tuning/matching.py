"""Data for refinement: inputs of a network with the original's outputs, and some rows held out.

A tensor is put on the device once and drawn from in random order. The original's outputs for it are computed
once if they take no more room than the inputs. Any other data is passed over batch by batch, each shuffled
by itself, and the original runs beside. Every stride-th row is held out, 2000 at the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch as Input
from feta.calibration.inputs import Inputs, per_sample, size_of
from feta.calibration.model import call, float_dtype, outputs_of, place
from feta.errors import ConfigError
from feta.tuning.loop import Batch
from feta.tuning.stepping import generator_of, order_of

HELD_OUT_ROWS = 2000
HELD_OUT_VALUES = 2**26  # entries of inputs in all of them


@dataclass(frozen=True)
class Original:
    """The network whose outputs are matched, and where the network that is fitted works."""

    model: nn.Module
    device: torch.device
    dtype: torch.dtype  # of the network that is fitted

    @torch.no_grad()
    def outputs(self, x: Any) -> Tensor:
        return outputs_of(call(self.model, x, self.device, float_dtype(self.model))).to(self.dtype)

    def matched(self, x: Input) -> Batch:
        size = size_of(x)
        return Batch(place(x, self.device, self.dtype), self.outputs(x), size, size)


class TensorRows:
    """Rows of one tensor; `held_out` are the ones to judge by. A pass is as long as it has rows."""

    fixed = True

    def __init__(self, x: Tensor, original: Original, stride: int, batch_size: int, seed: int) -> None:
        self.x, self.original, self.batch_size, self.seed = x, original, batch_size, seed
        self.targets = None
        if original.outputs(x[:1])[0].numel() <= x[0].numel():
            self.targets = torch.cat([original.outputs(part) for part in x.split(1000)])
        held = _held_out(len(x), stride).to(x.device)
        self.fitted = (~held).nonzero().squeeze(1)
        self.held_out = [self._at(rows) for rows in held.nonzero().squeeze(1).split(1000)]
        self.length: int | None = len(self.fitted)

    def over(self, number: int) -> Iterator[Batch]:
        order = order_of(len(self.fitted), self.seed, number).to(self.x.device)
        for rows in self.fitted[order].split(self.batch_size):
            yield self._at(rows)

    def _at(self, rows: Tensor) -> Batch:
        x = self.x[rows]
        targets = self.original.outputs(x) if self.targets is None else self.targets[rows]
        return Batch(x, targets, len(rows), len(rows))


class StreamRows:
    """Rows of batches that are passed over again and again; the held-out ones are kept."""

    fixed = False

    def __init__(
        self, inputs: Inputs, total: int, original: Original, stride: int, batch_size: int, seed: int
    ) -> None:
        self.inputs, self.original, self.stride = inputs, original, stride
        self.batch_size, self.seed = batch_size, seed
        self.held_out = [original.matched(batch) for batch in inputs.thinned(stride)]
        self.length: int | None = total - sum(batch.size for batch in self.held_out)

    def over(self, number: int) -> Iterator[Batch]:
        generator, seen = generator_of(self.seed, number), 0
        for batch in self.inputs:
            rows = (~_held_out(size_of(batch), self.stride, seen)).nonzero().squeeze(1)
            seen += size_of(batch)
            rows = rows[torch.randperm(len(rows), generator=generator)]
            for part in rows.split(self.batch_size) if len(rows) else ():
                yield self.original.matched(_pick(batch, part))


def rows_of(
    data: Any, original: Original, share: float, batch_size: int, n_samples: int | None, seed: int
) -> TensorRows | StreamRows:
    """The user's data as rows to fit, and a share of them to judge by."""
    inputs = Inputs(data, n_samples=n_samples, seed=seed)
    first, total = next(iter(inputs)), sum(size_of(batch) for batch in inputs)
    if total < 2:
        raise ConfigError(f"data must hold 2 or more samples to refine on, one to judge by, got {total}")
    parts = first.values() if isinstance(first, dict) else [first]
    values = sum(part[0].numel() for part in parts if isinstance(part, Tensor) and part.ndim)
    at_most = max(1, min(HELD_OUT_ROWS, HELD_OUT_VALUES // max(values, 1)))
    stride = max(2, round(1 / share), -(-total // at_most))
    if not isinstance(data, Tensor):
        return StreamRows(inputs, total, original, stride, batch_size, seed)
    if total < len(data):
        data = torch.cat([batch for batch in inputs if isinstance(batch, Tensor)])
    x = place(data, original.device, original.dtype, copy=False)
    return TensorRows(x, original, stride, batch_size, seed)


def _held_out(size: int, stride: int, start: int = 0) -> Tensor:
    """Which of the rows from number `start` on are held out."""
    return torch.arange(start, start + size) % stride == 0


def _pick(batch: Input, rows: Tensor) -> Input:
    if isinstance(batch, Tensor):
        return batch[rows.to(batch.device)]
    size = size_of(batch)
    return {
        key: value[rows.to(value.device)] if per_sample(value, size) else value
        for key, value in batch.items()
    }
