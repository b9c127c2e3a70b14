"""Streams of rows (A, B) for one layer, and what solvers draw from them.

A source gives a layer's calls as the network makes them; LayerStream turns them into rows chunk by chunk, so that a
convolution is never unfolded for the whole data set.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from feta.calibration.chain import Segment
from feta.calibration.lane import Lane, Seen
from feta.calibration.trace import LayerTrace
from feta.errors import ConfigError, DataError, check_range
from feta.layers import LayerView
from feta.problem import Activation, ActivationStream, Rows

SEED = 20  # of the rows that stand for all


@dataclass
class Source:
    """Calls of layers that read one input: a segment is run again on every pass, or its calls are kept."""

    lane: Lane
    segment: Segment
    layers: Sequence[LayerTrace]
    cascaded: bool
    kept: Iterable[dict[str, list[Seen]]] | None = None
    shared: dict[Any, Any] = field(default_factory=dict)  # what is known of their input, for all of them

    def calls(self, name: str) -> Iterator[Seen]:
        """Every call of a layer, in order."""
        for batch in self.lane.seen(self.segment, self.layers, self.cascaded) if self.kept is None else self.kept:
            yield from batch[name]

    def inputs(self, name: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The input of every call, and which of its rows count; the layer itself need not run for it."""
        if self.kept is not None:
            yield from ((seen.x, seen.keep) for seen in self.calls(name))
        else:
            yield from self.lane.inputs_seen(self.segment, self.layers, name, self.cascaded)

    def empty(self, name: str) -> bool:
        """Whether no row of any sample reaches a layer."""
        return not any(x.numel() for x, _ in self.inputs(name))


@dataclass(frozen=True)
class Through:
    """What the rows of a layer's outputs are: after a scale and a shift, a shortcut, and an activation."""

    activation: Activation
    scale: Tensor | None = None  # (d_out,)
    shift: Tensor | None = None
    shortcut: bool = False


@dataclass
class LayerStream:
    """Rows of one layer (one group of it): A as it is, B = rho(original output)."""

    source: Source
    view: LayerView
    through: Through
    group: int = 0
    max_values: int = 2**23  # entries of A in one chunk: 32 MiB of float32

    @property
    def shared(self) -> dict[Any, Any]:
        """What is known of the inputs of this group, for every layer that reads them as the same rows."""
        key = self.group, self.view.operator, self.view.weight.shape[2:]  # another kernel makes other rows
        found: dict[Any, Any] = self.source.shared.setdefault(key, {})
        return found

    @property
    def n_rows(self) -> int:
        if "rows" not in self.shared:
            for _ in self.inputs():
                pass
        return int(self.shared["rows"])

    @property
    def rho(self) -> Activation:
        return self.through.activation

    def rows(self) -> Iterator[Rows]:
        yield from self._rows(lambda count: None)

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((A, self.through.activation(Z)) for A, Z, _ in self.rows())

    def inputs(self) -> Iterator[Tensor]:
        count = 0
        for x, keep in self.source.inputs(self.view.name):
            x = self._flat(x)
            for part in self.view.chunks(x, self.max_values):
                A = self._kept(self.view.input_rows(x[part], self.group), keep, part)
                count += len(A)
                if len(A):
                    yield A.to(self.view.solve_dtype)
        self.shared["rows"] = count

    def sampled(self, size: int) -> "TensorStream":
        """About `size` rows, drawn at random over all samples and positions; held."""
        share = size / max(self.n_rows, 1)
        generator = torch.Generator().manual_seed(SEED)
        picked = list(self._rows(lambda n: None if share >= 1 else torch.rand(n, generator=generator) < share))
        first = picked or list(islice(self.rows(), 1))
        if not first:
            raise DataError(
                f"layer '{self.view.name}' must be reached by some sample, got none; leave it out with layers="
            )
        A, Z, R = zip(*first, strict=True)
        added = None if R[0] is None else torch.cat(R)
        return TensorStream(torch.cat(A), torch.cat(Z), R=added, rho=self.through.activation)

    def _rows(self, choose: Callable[[int], Tensor | None]) -> Iterator[Rows]:
        """Rows by chunks, those that are chosen out of each chunk's number of them."""
        view, dtype, through = self.view, self.view.solve_dtype, self.through
        for seen in self.source.calls(view.name):
            x, z = self._flat(seen.x), self._flat(seen.z)
            extra = (seen.before, seen.now) if through.shortcut else (None, None)
            before, now = (None if tensor is None else self._flat(tensor) for tensor in extra)
            for part in view.chunks(x, self.max_values):
                Z = view.output_rows(z[part], self.group)
                chosen = choose(len(Z))
                if seen.keep is not None:
                    keep = seen.keep[part].cpu()
                    chosen = keep if chosen is None else keep & chosen
                picked = None if chosen is None else chosen.nonzero()[:, 0].to(x.device)
                if picked is not None and len(picked) == 0:
                    continue
                A = view.input_rows(x[part], self.group, picked).to(dtype)
                Z = (Z if picked is None else Z[picked]).to(dtype)
                if through.scale is not None and through.shift is not None:
                    Z = Z * through.scale + through.shift
                R = None
                if before is not None and now is not None:
                    Z = Z + view.output_rows(before[part], self.group, picked).to(dtype)
                    R = view.output_rows(now[part], self.group, picked).to(dtype)
                yield Rows(A, Z, R)

    def _flat(self, tensor: Tensor) -> Tensor:
        """Samples first, for a convolution; rows first, for a matrix product."""
        return self.view.batched(tensor) if self.view.operator.spatial else tensor.reshape(-1, tensor.shape[-1])

    def _kept(self, A: Tensor, keep: Tensor | None, part: slice) -> Tensor:
        return A if keep is None else A[keep[part]]


@dataclass(frozen=True)
class TensorStream:
    """Rows the caller holds already, in chunks."""

    A: Tensor  # (m, d_in)
    B: Tensor  # (m, d_out)
    chunk_rows: int = 8192
    R: Tensor | None = None  # (m, d_out), what is added to the layer's outputs
    rho: Activation = Activation.LINEAR  # what makes B out of what is held

    def __post_init__(self) -> None:
        check_range("rows", ">= 1", chunk_rows=self.chunk_rows)
        if self.A.ndim != 2 or self.B.ndim != 2 or len(self.A) != len(self.B) or len(self.A) == 0:
            shapes = f"{tuple(self.A.shape)} and {tuple(self.B.shape)}"
            raise ConfigError(f"A and B must be (m, d_in) and (m, d_out) with m >= 1, got {shapes}")

    @property
    def n_rows(self) -> int:
        return len(self.A)

    def rows(self) -> Iterator[Rows]:
        for start in range(0, len(self.A), self.chunk_rows):
            part = slice(start, start + self.chunk_rows)
            yield Rows(self.A[part], self.B[part], None if self.R is None else self.R[part])

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((A, self.rho(Z)) for A, Z, _ in self.rows())

    def inputs(self) -> Iterator[Tensor]:
        yield from self.A.split(self.chunk_rows)

    def sampled(self, size: int) -> "TensorStream":
        if size >= len(self.A):
            return self
        order = torch.randperm(len(self.A), generator=torch.Generator().manual_seed(SEED))
        rows = order[:size].sort().values.to(self.A.device)
        added = None if self.R is None else self.R[rows]
        return TensorStream(self.A[rows], self.B[rows], self.chunk_rows, added, self.rho)


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
