"""Streams of rows (A, B) for one layer, and what solvers draw from them.

A source gives a layer's calls as the network makes them; LayerStream turns them into rows chunk by chunk, so that a
convolution is never unfolded for the whole data set.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from feta.calibration.chain import Segment
from feta.calibration.lane import Lane, Seen, numbers_of
from feta.calibration.trace import LayerTrace
from feta.errors import ConfigError, DataError, check_range
from feta.layers import LayerView
from feta.problem import Activation, ActivationStream, Rows
from feta.ranks import Ranks

SEED = 20  # of the rows that stand for all
Place = tuple[slice, Tensor | None]  # a chunk of a call, and which of its rows; None: all
MIXERS = (-7046029254386353131, -4417276706812531889)  # odd, of 64 bits


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

    @property
    def ranks(self) -> Ranks:
        """The processes that have the other samples."""
        return self.lane.inputs.ranks

    def empty(self, name: str) -> bool:
        """Whether no row of any sample reaches a layer."""
        return not self.ranks.any(any(x.numel() for x, _ in self.inputs(name)))


@dataclass(frozen=True)
class Through:
    """What the rows of a layer's outputs are: after a scale and a shift, a shortcut, and an activation."""

    activation: Activation
    scale: Tensor | None = None  # (d_out,)
    shift: Tensor | None = None
    shortcut: bool = False


@dataclass
class LayerStream:
    """Rows of one layer (one group of it): A as it is, B = rho(original output).

    Where processes share the samples, passes are over this one's rows, and `n_rows` counts those of all.
    """

    source: Source
    view: LayerView
    through: Through
    group: int = 0
    max_values: int | None = None  # entries of A in one chunk; None: as many as there is room for

    @property
    def shared(self) -> dict[Any, Any]:
        """What is known of the inputs of this group, for every layer that reads them as the same rows."""
        return self._known(self.group)

    def _known(self, group: int | None) -> dict[Any, Any]:
        """What is known of the inputs of a group; None: of those of every group."""
        key = group, self.view.operator, self.view.weight.shape[2:]  # another kernel makes other rows
        found: dict[Any, Any] = self.source.shared.setdefault(key, {})
        return found

    @property
    def chunk_values(self) -> int:
        return self.max_values or self.source.lane.room.values

    @property
    def ranks(self) -> Ranks:
        return self.source.ranks

    @property
    def n_rows(self) -> int:
        counted = self._known(None)
        if "rows" not in counted:
            if "own rows" not in counted:
                for _ in self.inputs():
                    pass
            counted["rows"] = int(self.ranks.sum([counted["own rows"]])[0])
        return int(counted["rows"])

    @property
    def rho(self) -> Activation:
        return self.through.activation

    def rows(self) -> Iterator[Rows]:
        yield from (rows for rows, _ in self._rows())

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((A, self.through.activation(Z)) for A, Z, _ in self.rows())

    def inputs(self) -> Iterator[Tensor]:
        count = 0
        for call, (x, keep) in enumerate(self.source.inputs(self.view.name)):
            x = self._flat(x)
            for part in self.view.chunks(x, self.chunk_values):
                A = self.view.input_rows(x[part], self.group)
                A = A if keep is None else A[keep[part]]
                count += len(A)
                if len(A):
                    self.shared.setdefault("first", call)
                    yield A.to(self.view.solve_dtype)
        self._known(None)["own rows"] = count

    def sampled(self, size: int) -> "TensorStream":
        """About `size` rows, drawn at random over all samples and positions of all processes; held by each."""
        return sampled([self], size)[0]

    def _held(self, picked: Sequence[tuple[Rows, Tensor]]) -> "TensorStream":
        """Rows that were drawn, with those that other processes drew."""
        if not self.ranks.any(bool(picked)):
            picked = list(islice(self._rows(), 1))
        if not self.ranks.any(bool(picked)):
            raise DataError(
                f"layer '{self.view.name}' must be reached by some sample, got none; leave it out with layers="
            )
        A, Z, R = self._together([rows for rows, _ in picked], [numbers for _, numbers in picked])
        return TensorStream(A, Z, R=R, rho=self.through.activation)

    def _together(self, picked: Sequence[Rows], numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows of all processes, in the order of their numbers: whoever draws from them draws the same."""
        ranks, view = self.ranks, self.view
        device = picked[0].A.device if picked else view.weight.device
        added = ranks.any(any(rows.R is not None for rows in picked))

        def joined(index: int, width: int) -> Tensor:
            none = torch.empty(0, width, dtype=view.solve_dtype, device=device)  # of a process without rows
            return ranks.gathered(torch.cat([none, *(rows[index] for rows in picked)]))  # type: ignore[list-item]

        parts = [joined(0, view.d_in), *(joined(index, view.d_out // view.groups) for index in range(1, 2 + added))]
        order = ranks.gathered(torch.cat([torch.empty(0, dtype=torch.int64), *numbers]))
        if not bool((order[1:] >= order[:-1]).all()):
            places = order.argsort(stable=True).to(device)
            parts = [part[places] for part in parts]
        return parts[0], parts[1], parts[2] if added else None

    def _rows(self) -> Iterator[tuple[Rows, Tensor]]:
        """Rows by chunks, with their numbers."""
        for call, seen in enumerate(self.source.calls(self.view.name)):
            yield from ((self._at(call, seen, place), numbers) for place, numbers in self._places(seen))

    def _places(self, seen: Seen, share: float = 1.0) -> Iterator[tuple[Place, Tensor]]:
        """The rows of a call that count, or are drawn, by chunks; and their numbers."""
        view, x, z = self.view, self._flat(seen.x), self._flat(seen.z)
        count = z.numel() // z.shape[1 if view.operator.spatial else -1]
        each = count // max(len(x), 1) if view.operator.spatial else 1  # rows of what is cut
        numbers = _numbers(seen, view, count)
        for part in view.chunks(x, self.chunk_values):
            here = numbers[part.start * each : part.stop * each]
            chosen = None if share >= 1 else uniform(here) < share
            if seen.keep is not None:
                keep = seen.keep[part].cpu()
                chosen = keep if chosen is None else keep & chosen
            picked = None if chosen is None else chosen.nonzero()[:, 0]
            here = here if picked is None else here[picked]
            if len(here):
                yield (part, None if picked is None else picked.to(x.device)), here

    def _at(self, call: int, seen: Seen, place: Place) -> Rows:
        """The rows of this group at some places of a call."""
        (part, picked), view, through, dtype = place, self.view, self.through, self.view.solve_dtype

        def outputs(z: Tensor) -> Tensor:
            return view.output_rows(self._flat(z)[part], self.group, picked).to(dtype)

        self.shared.setdefault("first", call)
        A, Z = view.input_rows(self._flat(seen.x)[part], self.group, picked).to(dtype), outputs(seen.z)
        if through.scale is not None and through.shift is not None:
            Z = Z * through.scale + through.shift
        if not through.shortcut or seen.before is None or seen.now is None:
            return Rows(A, Z, None)
        return Rows(A, Z + outputs(seen.before), outputs(seen.now))

    def _flat(self, tensor: Tensor) -> Tensor:
        """Samples first, for a convolution; rows first, for a matrix product."""
        return self.view.batched(tensor) if self.view.operator.spatial else tensor.reshape(-1, tensor.shape[-1])


def sampled(groups: Sequence[LayerStream], size: int) -> list["TensorStream"]:
    """About `size` rows for each group of a layer, the same ones, of one pass over the calls."""
    first, picked = groups[0], [list[tuple[Rows, Tensor]]() for _ in groups]
    share = size / max(first.n_rows, 1)
    for call, seen in enumerate(first.source.calls(first.view.name)):
        for place, numbers in first._places(seen, share):
            for group, found in zip(groups, picked, strict=True):
                found.append((group._at(call, seen, place), numbers))
    return [group._held(found) for group, found in zip(groups, picked, strict=True)]


def _numbers(seen: Seen, view: LayerView, count: int) -> Tensor:
    if seen.samples is None:
        return torch.arange(count)
    return numbers_of(seen.samples.cpu(), seen.x, view.operator, count)


def uniform(numbers: Tensor) -> Tensor:
    """A number in [0, 1) for each whole number, always the same one: no draw depends on what was drawn before."""
    mixed = (numbers + SEED) * MIXERS[0]
    for shift in (30, 27):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * MIXERS[1]
    return ((mixed >> 40) & 0xFFFFFF).float() / 2**24


@dataclass(frozen=True)
class TensorStream:
    """Rows the caller holds already, in chunks."""

    A: Tensor  # (m, d_in)
    B: Tensor  # (m, d_out)
    chunk_rows: int = 8192
    R: Tensor | None = None  # (m, d_out), what is added to the layer's outputs
    rho: Activation = Activation.LINEAR  # what makes B out of what is held
    shared: dict[Any, Any] = field(default_factory=dict, compare=False)  # what is known of the inputs

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
