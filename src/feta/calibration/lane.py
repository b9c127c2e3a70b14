"""Both networks on their way through some samples: the states they stand at, and the rows of the layers ahead."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feta.calibration.chain import Chain, Segment, State
from feta.calibration.hold import Room
from feta.calibration.inputs import Batch, Inputs
from feta.calibration.model import float_dtype, place
from feta.calibration.spill import mapped
from feta.calibration.tap import Caught, Tap
from feta.calibration.trace import LayerTrace
from feta.errors import ModelError
from feta.layers import Operator


class Unlike(ModelError):
    """A layer's calls in the two networks do not fit together row by row."""


class Seen(NamedTuple):
    """One call of a layer: its input now, its original output, what is added behind it, and the rows that count."""

    x: Tensor
    z: Tensor
    before: Tensor | None = None  # the shortcut in the original
    now: Tensor | None = None  # in the network pruned so far
    keep: Tensor | None = None  # (rows,) bool: positions that are not padding
    samples: Tensor | None = None  # (samples,) a number for each, and for this call of the layer: see `numbers_of`


@dataclass
class Lane:
    """Samples, and where the original and the pruned network stand with them."""

    chain: Chain
    inputs: Inputs
    original: nn.Module
    pruned: nn.Module
    room: Room
    parted: bool = False  # whether the pruned network's states are its own
    _states: list[Any] = field(default_factory=lambda: [None, None])  # hidden states of both networks
    _extras: list[Any] = field(default_factory=lambda: [None, None])

    def advance(self, segment: Segment) -> None:
        """Run both networks through a segment; only what the next one needs is kept."""
        before = self._states[0] is self._states[1]
        self._step(0, segment)
        if self.parted:
            self._step(1, segment)
        elif before:
            self._states[1], self._extras[1] = self._states[0], self._extras[0]

    def seen(self, segment: Segment, layers: Sequence[LayerTrace], cascaded: bool) -> Iterator[dict[str, list[Seen]]]:
        """For each batch, every call of some layers with one input, or of one layer."""
        shortcuts = any(layer.follow.shortcut for layer in layers)
        taps = Tap(self.original, layers), Tap(self.pruned, layers)
        others: Iterable[Any] = self.items(1) if cascaded else repeat((None, None))
        # Each network has a copy of the batch: a model may change its input in place.
        numbered = (numbers for _, numbers in self.inputs.numbered())
        for (batch, old), (again, new), numbers in zip(self.items(0), others, numbered, strict=False):
            then = self._tap(taps[0], segment, batch, old, outputs=True, shortcuts=shortcuts)
            now = self._tap(taps[1], segment, again, new, outputs=False, shortcuts=shortcuts) if cascaded else then
            yield {layer.name: self._together(layer, then, now, batch, numbers) for layer in layers}

    def inputs_seen(
        self, segment: Segment, layers: Sequence[LayerTrace], name: str, cascaded: bool
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The input of every call of one of the layers, and which of its rows count: one network alone runs."""
        tap, side = [layer for layer in layers if layer.name == name], int(cascaded)
        model = (self.original, self.pruned)[side]
        for batch, state in self.items(side):
            caught = self._tap(Tap(model, tap), segment, batch, state, outputs=False, shortcuts=False)
            yield from ((call.x, kept_rows(batch, call.x, tap[0].operator)) for call in caught[name])

    def _tap(self, tap: Tap, segment: Segment, batch: Batch, state: State | None, **what: bool) -> Any:
        return tap.run(lambda: self.chain.run(tap.model, segment, batch, state), **what)

    def _together(
        self,
        layer: LayerTrace,
        then: Mapping[str, list[Caught]],
        now: Mapping[str, list[Caught]],
        batch: Batch,
        numbers: Tensor,
    ) -> list[Seen]:
        shapes = [[tuple(call.x.shape) for call in calls[layer.name]] for calls in (then, now)]
        if shapes[0] != shapes[1]:
            raise Unlike(f"layer '{layer.name}' must have rows alike in both networks, got inputs {shapes}")
        pairs = enumerate(zip(then[layer.name], now[layer.name], strict=True))
        return [
            Seen(b.x, a.z, a.shortcut, b.shortcut, kept_rows(batch, b.x, layer.operator), _of_call(numbers, call))  # type: ignore[arg-type]
            for call, (a, b) in pairs
        ]

    def items(self, side: int) -> Iterator[tuple[Batch, State | None]]:
        """The batches, on the device, with the state a network stands at."""
        model = (self.original, self.pruned)[side]
        states = (
            repeat(None) if self._states[side] is None else zip(self._states[side], self._extras[side], strict=True)
        )
        device = self.room.device
        for batch, state in zip(self.inputs, states, strict=False):
            here = None if state is None else State(*mapped(state, lambda tensor: tensor.to(device)))
            yield place(batch, device, float_dtype(model)), here

    @torch.no_grad()
    def _step(self, side: int, segment: Segment) -> None:
        model = (self.original, self.pruned)[side]
        ahead = (self.chain.run(model, segment, batch, state) for batch, state in self.items(side))
        if self._states[side] is None:
            held = self.room.hold(tuple(state) for state in ahead)
            self._states[side], self._extras[side] = _Part(held, 0), _Part(held, 1)
        else:
            self._states[side] = self.room.hold(state.hidden for state in ahead)


def _of_call(numbers: Tensor, call: int) -> Tensor:
    """Numbers of samples, apart for each call of a layer, with room for the positions in a sample."""
    return (numbers << 32) + (call << 24)


def numbers_of(samples: Tensor, x: Tensor, operator: Operator, rows: int) -> Tensor:
    """A number for each of the rows of a call with input x: of its sample, its call and its position there.

    It tells rows apart whatever the batches and the processes. Where a network picks rows itself nobody knows whose
    they are: they are counted as they come.
    """
    count = len(samples)
    if rows % count:
        return samples[:1] + torch.arange(rows)
    each = samples[:, None] + torch.arange(rows // count)  # (samples, positions)
    positions_first = x.ndim > 2 and x.shape[0] != count and x.shape[1] == count
    return (each.t() if not operator.spatial and (operator.time_first or positions_first) else each).flatten()


@dataclass(frozen=True)
class _Part:
    """One of the things that items hold."""

    items: Iterable[Any]
    index: int

    def __iter__(self) -> Iterator[Any]:
        return (item[self.index] for item in self.items)


def kept_rows(batch: Batch, x: Tensor, operator: Operator = Operator()) -> Tensor | None:  # noqa: B008 - frozen
    """Which rows of a layer's input are no padding, by the batch's own mask; None: all, or they are not positions."""
    if not isinstance(batch, Mapping) or operator.spatial:
        return None
    mask = batch.get("attention_mask")
    if mask is None and (padding := batch.get("src_key_padding_mask", batch.get("key_padding_mask"))) is not None:
        mask = ~padding.bool() if isinstance(padding, Tensor) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or x.ndim < 2:
        return None
    keep = mask.bool().t() if operator.time_first else mask.bool()
    if x.shape[:-1] == keep.shape or (x.ndim == 2 and len(x) == keep.numel()):
        return keep.flatten()
    return keep.t().flatten() if x.shape[:-1] == keep.t().shape else None  # a model that has positions first
