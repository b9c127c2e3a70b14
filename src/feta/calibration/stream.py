"""Streams of rows (A, B) for one layer, and what solvers draw from them.

A source gives a layer's input and original output as the module sees them; LayerStream turns them into
rows chunk by chunk, so that a convolution is never unfolded for the whole data set.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from feta.calibration.capture import LayerTap
from feta.calibration.inputs import Inputs
from feta.errors import ConfigError, DataError
from feta.layers import LayerView
from feta.problem import Activation, ActivationStream


@dataclass(frozen=True)
class ReplaySource:
    """Both networks run again on every pass, one alone where the layer's inputs are the same; keeps nothing."""

    inputs: Inputs
    original: LayerTap
    pruned: LayerTap | None = None  # None: the layer's input comes from the original network

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over (layer input, original layer output), as the module sees them."""
        for batch in self.inputs:
            seen = self.original.run(batch)
            inputs = [x for x, _ in seen] if self.pruned is None else self.pruned.inputs(batch)
            yield from zip(inputs, (z for _, z in seen), strict=True)

    def inputs_alone(self) -> Iterator[Tensor]:
        """One pass over the layer's inputs; its outputs are not computed."""
        for batch in self.inputs:
            yield from (self.pruned or self.original).inputs(batch)

    def thinned(self, stride: int) -> "ReplaySource":
        """Every stride-th sample of this source."""
        return replace(self, inputs=self.inputs.thinned(stride))


@dataclass(frozen=True)
class KeptSource:
    """The pairs of another source, on disk (a Spill) or in memory (a list); given out on the device."""

    kept: Iterable[tuple[Tensor, Tensor]]
    device: torch.device

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, z in self.kept:
            yield x.to(self.device), z.to(self.device)

    def inputs_alone(self) -> Iterator[Tensor]:
        yield from (x for x, _ in self.pairs())

    def thinned(self, stride: int) -> "KeptSource":
        # Copies: a part of a memory-mapped batch would keep the whole batch in memory.
        held, seen = [], 0
        for x, z in self.pairs():
            rows = slice(-seen % stride, None, stride)
            seen += len(x)
            if len(x[rows]):
                held.append((x[rows].clone(), z[rows].clone()))
        return KeptSource(held, self.device)


Source = ReplaySource | KeptSource


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
            self._n_rows = sum(len(A) for A in self.inputs())
        return self._n_rows

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        count, dtype = 0, self.view.solve_dtype
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

    def thinned(self, stride: int) -> "LayerStream":
        return replace(self, source=self.source.thinned(stride))


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

    def thinned(self, stride: int) -> "TensorStream":
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
        rows = (chosen[(chosen >= start) & (chosen < start + len(A))] - start).to(A.device)
        picked.append((A[rows], B[rows]))
        start += len(A)
    A, B = torch.cat([A for A, _ in picked]), torch.cat([B for _, B in picked])
    if not bool(torch.isfinite(A).all()):
        raise DataError("a layer's inputs must be finite, got NaN or infinite values in the data")
    return A, B
