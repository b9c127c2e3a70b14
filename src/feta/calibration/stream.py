"""Streams of rows (A, B) for one layer, and what solvers draw from them.

    ReplaySource    runs the original and the pruned network again on every pass: no memory, no disk
    SpilledSource   one such pass kept in a memory-mapped file, for methods with many passes
    HeldSource      one such pass kept in memory, on the model's device: only when the user asks for it

A source gives a layer's input and original output as the module sees them; LayerStream turns them into
rows chunk by chunk, so that a convolution is never unfolded for the whole data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from feta.calibration.capture import LayerTap
from feta.calibration.inputs import Inputs
from feta.calibration.spill import Spill
from feta.errors import ConfigError, DataError, ModelError
from feta.layers import LayerView
from feta.problem import Activation, ActivationStream


class Source(Protocol):
    """Passes over (layer input, original layer output), as the module sees them."""

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def inputs_alone(self) -> Iterator[Tensor]:
        """The layer's inputs, where the outputs are not needed and need not be computed."""
        ...

    def thinned(self, stride: int) -> Source:
        """Every stride-th sample of this source."""
        ...


@dataclass(frozen=True)
class ReplaySource:
    """Both networks run in step; one network alone where their inputs to the layer are the same."""

    inputs: Inputs
    original: LayerTap
    pruned: LayerTap | None  # None: the layer's input comes from the original network

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.inputs:
            outputs = self.original.run(batch)
            inputs = outputs if self.pruned is None else self.pruned.run(batch, outputs=False)
            for (x, _), (_, z) in zip(inputs, outputs, strict=True):
                if z is None:  # pragma: no cover - run(outputs=True) always gives one
                    raise ModelError("a layer gave no output")
                yield x, z

    def inputs_alone(self) -> Iterator[Tensor]:
        tap = self.original if self.pruned is None else self.pruned
        for batch in self.inputs:
            yield from (x for x, _ in tap.run(batch, outputs=False))

    def thinned(self, stride: int) -> ReplaySource:
        return replace(self, inputs=self.inputs.thinned(stride))


@dataclass(frozen=True)
class SpilledSource:
    """Another source's pairs on disk."""

    spill: Spill
    device: torch.device

    @classmethod
    def of(cls, source: Source, device: torch.device) -> SpilledSource:
        return cls(Spill.of(source.pairs()), device)

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, z in self.spill:
            yield x.to(self.device), z.to(self.device)

    def inputs_alone(self) -> Iterator[Tensor]:
        yield from (x for x, _ in self.pairs())

    def thinned(self, stride: int) -> HeldSource:
        return _thin(self, stride)


@dataclass(frozen=True)
class HeldSource:
    """Another source's pairs in memory."""

    held: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, source: Source) -> HeldSource:
        return cls([(x.clone(), z.clone()) for x, z in source.pairs()])

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from self.held

    def inputs_alone(self) -> Iterator[Tensor]:
        yield from (x for x, _ in self.held)

    def thinned(self, stride: int) -> HeldSource:
        return _thin(self, stride)


def _thin(source: Source, stride: int) -> HeldSource:
    # Copies: a part of a memory-mapped batch would keep the whole batch in memory.
    held, seen = [], 0
    for x, z in source.pairs():
        rows = slice(-seen % stride, None, stride)
        seen += len(x)
        if len(x[rows]):
            held.append((x[rows].clone(), z[rows].clone()))
    return HeldSource(held)


@dataclass
class LayerStream:
    """Rows of one layer (one group of it): A as it is, B = rho(original output)."""

    source: Source
    view: LayerView
    activation: Activation
    group: int = 0
    max_values: int = 2**23  # entries of A in one chunk: 32 MiB of float32
    _n_rows: int | None = field(default=None, init=False)

    @property
    def n_rows(self) -> int:
        if self._n_rows is None:
            for _ in self.inputs():
                pass
        if self._n_rows is None:  # pragma: no cover - a full pass sets it
            raise ConfigError("a stream must be read to its end to be counted")
        return self._n_rows

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = 0
        dtype = self.view.solve_dtype
        for x, z in self.source.pairs():
            for A, Z in self.view.row_chunks(x, z, self.group, self.max_values):
                count += len(A)
                yield A.to(dtype), self.activation(Z.to(dtype))
        self._n_rows = count

    def inputs(self) -> Iterator[Tensor]:
        count = 0
        for x in self.source.inputs_alone():
            for A in self.view.input_chunks(x, self.group, self.max_values):
                count += len(A)
                yield A.to(self.view.solve_dtype)
        self._n_rows = count

    def thinned(self, stride: int) -> LayerStream:
        source = self.source.thinned(stride)
        return LayerStream(source, self.view, self.activation, self.group, self.max_values)


@dataclass(frozen=True)
class TensorStream:
    """Rows the caller holds already, in chunks."""

    A: Tensor  # (m, d_in)
    B: Tensor  # (m, d_out)
    chunk_rows: int = 8192

    def __post_init__(self) -> None:
        if self.A.ndim != 2 or self.B.ndim != 2 or len(self.A) != len(self.B) or len(self.A) == 0:
            shapes = f"{tuple(self.A.shape)} and {tuple(self.B.shape)}"
            raise ConfigError(f"A and B must be (m, d_in) and (m, d_out) with m >= 1, got {shapes}")

    @property
    def n_rows(self) -> int:
        return len(self.A)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.A.split(self.chunk_rows), self.B.split(self.chunk_rows), strict=True)

    def inputs(self) -> Iterator[Tensor]:
        yield from self.A.split(self.chunk_rows)

    def thinned(self, stride: int) -> TensorStream:
        return TensorStream(self.A[::stride], self.B[::stride], self.chunk_rows)


def minibatches(stream: ActivationStream, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass in minibatches whose rows are drawn at random, without replacement, within each chunk.

    Rows of different chunks never meet in a minibatch: that is the price of memory bounded by one chunk.
    """
    for A, B in stream.chunks():
        order = torch.randperm(len(A), generator=generator).to(A.device)
        for rows in order.split(size):
            yield A[rows], B[rows]


def sample_rows(stream: ActivationStream, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n rows (all, when there are fewer) drawn without replacement over the whole stream, in one pass."""
    chosen = torch.randperm(stream.n_rows, generator=generator)[:n].sort().values
    start, picked = 0, []
    for A, B in stream.chunks():
        inside = chosen[(chosen >= start) & (chosen < start + len(A))] - start
        if len(inside):
            rows = inside.to(A.device)
            picked.append((A[rows], B[rows]))
        start += len(A)
    A, B = torch.cat([A for A, _ in picked]), torch.cat([B for _, B in picked])
    if not bool(torch.isfinite(A).all()):
        raise DataError("a layer's inputs must be finite, got NaN or infinite values in the data")
    return A, B
