"""A network as a chain of segments, each fed by the one before, so that a layer's rows cost one segment's run.

The blocks of a chain are modules that are called one after the other, each once, each given what the one before
returned; whatever else they are called with must not depend on them. What runs before the first block is the head,
what runs after the last is the tail: both are the model itself, run with its blocks switched off.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch
from feta.calibration.model import run_on
from feta.calibration.notes import Note, Recording, Value, Visit
from feta.calibration.recording import tensors_in
from feta.calibration.spill import mapped
from feta.calibration.trace import LayerTrace
from feta.errors import ModelError
from feta.layers import weight_of

TRIES = 4  # chains that are verified, the best first


class _Reached(Exception):
    """The last block of a chain is about to run: the head is done."""


class Extra(NamedTuple):
    """What a block is called with besides its state."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str | None  # the state's keyword; None: it is the first argument

    def call(self, block: nn.Module, state: Tensor) -> Any:
        if self.key is None:
            return block(state, *self.args, **self.kwargs)
        return block(*self.args, **{self.key: state}, **self.kwargs)


class State(NamedTuple):
    """What a network hands from one segment to the next, for one batch."""

    hidden: Tensor
    extras: tuple[Extra, ...]  # of every block


@dataclass(frozen=True)
class Segment:
    """A part of a chain, and the layers in it: blocks from start to stop, or the head (-1) or the tail."""

    start: int
    stop: int
    layers: tuple[LayerTrace, ...] = ()


@dataclass(frozen=True)
class Chain:
    """The blocks of a model by name, and how many things each returns (0: its state alone); none: it is not cut."""

    blocks: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()

    def run(self, model: nn.Module, segment: Segment, batch: Batch, state: State | None) -> Any:
        """The state behind a segment; behind the tail, or where there are no blocks, the model's outputs."""
        if not self.blocks:
            return run_on(model, batch)
        if state is None:
            return self._head(model, batch)
        state = state._replace(hidden=state.hidden.clone())  # a block may work in place, and states run again
        if segment.start == len(self.blocks):
            last = state.hidden
            with self._switched(model, lambda index, args, kwargs: self._wrapped(index, last)):
                return run_on(model, batch)
        for index in range(segment.start, segment.stop):
            result = state.extras[index].call(model.get_submodule(self.blocks[index]), state.hidden)
            state = state._replace(hidden=result[0] if self.widths[index] else result)
        return state

    def segments(self, layers: Sequence[LayerTrace], wanted: Container[str] | None = None) -> list[Segment]:
        """The segments in order: the head, a new one at every block with a wanted layer in it, the tail.

        layers: all of the model's, in order. Without blocks there is one segment.
        wanted: the names of those that segments are made for; None: all.
        """
        if not self.blocks:
            return [Segment(0, 0, tuple(layer for layer in layers if wanted is None or layer.name in wanted))]
        place = {name: index for index, name in enumerate(self.blocks)}
        inside: dict[int, list[LayerTrace]] = defaultdict(list)
        reached = -1
        for layer in layers:
            own = next((place[name] for name in layer.places[0] if name in place), None)
            reached = max(reached, -1 if own is None else own)
            if wanted is None or layer.name in wanted:
                inside[own if own is not None else -1 if reached < 0 else len(self.blocks)].append(layer)
        found = [Segment(-1, 0, tuple(inside[-1]))]
        for index in range(len(self.blocks)):
            if found[-1].start < 0 or inside[index]:
                found.append(Segment(index, index + 1, tuple(inside[index])))
            else:
                found[-1] = replace(found[-1], stop=index + 1)
        return [*found, Segment(len(self.blocks), len(self.blocks) + 1, tuple(inside[len(self.blocks)]))]

    def tensors(self, model: nn.Module, segment: Segment) -> list[Tensor]:
        """The parameters that a segment reads: those of its blocks, or of all that is in no block.

        Those of a batch-norm behind one of its layers are among them: it is folded into the layer, wherever it is.
        """
        inside = self.blocks[max(segment.start, 0) : segment.stop]
        found = [tensor for name in inside for tensor in model.get_submodule(name).parameters()]
        if not inside:
            every, blocks = model.named_parameters(remove_duplicate=False), tuple(f"{name}." for name in self.blocks)
            found = [tensor for name, tensor in every if not name.startswith(blocks)]
        norms = [layer.follow.norm for layer in segment.layers if layer.follow.norm is not None]
        return [*found, *(tensor for name in norms for tensor in model.get_submodule(name).parameters())]

    def _head(self, model: nn.Module, batch: Batch) -> State:
        seen: list[tuple[Tensor, Extra]] = []

        def skip(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            seen.append(_split(args, kwargs))
            if len(seen) == len(self.blocks):
                raise _Reached
            return self._wrapped(index, seen[0][0])

        with self._switched(model, skip), suppress(_Reached):
            run_on(model, batch)
        if len(seen) < len(self.blocks):
            raise ModelError(
                f"model must run '{self.blocks[len(seen)]}' on every batch, got one on which it does not; "
                "Settings(cache='replay') prunes such a model"
            )
        return State(seen[0][0], tuple(extra for _, extra in seen))

    def _wrapped(self, index: int, state: Tensor) -> Any:
        """A state as the block would have returned it."""
        return (state, *[None] * (self.widths[index] - 1)) if self.widths[index] else state

    @contextmanager
    def _switched(self, model: nn.Module, instead: Callable[..., Any]) -> Iterator[None]:
        """Inside, the blocks of the model do something else."""
        blocks = [model.get_submodule(name) for name in self.blocks]
        own = [block.__dict__.get("forward") for block in blocks]  # a model may have put its own there
        for index, block in enumerate(blocks):
            block.forward = lambda *args, index=index, **kwargs: instead(index, args, kwargs)
        try:
            yield
        finally:
            for block, before in zip(blocks, own, strict=True):
                del block.forward
                if before is not None:
                    block.forward = before


Around = Callable[[Chain, Segment | None], AbstractContextManager[Any]]


def find_chain(
    recording: Recording, layers: Sequence[LayerTrace], batch: Batch, around: Around = lambda *_: nullcontext()
) -> Chain:
    """The chain that leaves the least work, of those that give the model's own outputs on the batch.

    around: inside of it a segment of a chain has its weights; or the whole model, if that is None.
    """
    whole = _work(Chain(), layers)
    chains = sorted((_trimmed(chain, layers) for chain in _chains(recording)), key=lambda c: _work(c, layers))
    for chain in chains[:TRIES]:
        if _work(chain, layers) >= whole:
            break
        clean = _hands_on_states(chain, recording) and _cuts_cleanly(chain, recording, layers)
        if clean and _same_outputs(chain, recording.model, layers, batch, around):
            return chain
    return Chain()


def _trimmed(chain: Chain, layers: Sequence[LayerTrace]) -> Chain:
    """The chain from its first block with a layer in it: what the others make may be needed beside their state."""
    filled = {name for layer in layers for name in layer.places[0]}
    start = next((index for index, name in enumerate(chain.blocks) if name in filled), 0)
    return Chain(chain.blocks[start:], chain.widths[start:])


def _chains(recording: Recording) -> Iterator[Chain]:
    """Runs of modules, of the same caller, that hand their state on; an expert's may have no rows."""
    plain = {name for name, module in recording.model.named_modules() if type(module) is nn.Sequential}
    visits = Counter(visit.name for visit in recording.visits)
    by_caller: dict[str | None, list[Visit]] = defaultdict(list)
    for visit in recording.visits:
        if visit.name not in plain:
            by_caller[next((name for name in reversed(visit.modules) if name not in plain), None)].append(visit)
    for siblings in by_caller.values():
        run: list[Visit] = []
        ends: list[Visit | None] = [*siblings, None]
        for visit in ends:  # type: ignore[assignment]
            if run and (visit is None or visits[visit.name] > 1 or visit.given != run[-1].gave):
                if len(run) > 1 and not recording.picked(run[0].given):
                    yield Chain(tuple(v.name for v in run), tuple(v.width for v in run))
                run = []
            if visit is not None and visits[visit.name] == 1 and visit.gave is not None:
                run.append(visit)


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Extra]:
    """The state among a block's arguments, the first tensor of them, and the rest."""
    if args and isinstance(args[0], Tensor):
        state, extra = args[0], Extra(args[1:], kwargs, None)
    else:
        key = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        state, extra = kwargs[key], Extra(args, {name: kwargs[name] for name in kwargs if name != key}, key)
    if any(tensor is state for tensor in tensors_in(extra)):
        raise ModelError("a block must be given its state once, got it in several arguments")
    return state, extra


def _work(chain: Chain, layers: Sequence[LayerTrace]) -> int:
    """Runs of layers that a walk takes: each layer of a segment runs the whole segment."""
    return sum(len(segment.layers) ** 2 for segment in chain.segments(layers))


def _hands_on_states(chain: Chain, recording: Recording) -> bool:
    """Whether nothing that a block makes is read outside of it but its state, and that by the next one alone."""
    place = {name: index for index, name in enumerate(chain.blocks)}
    states = {place[visit.name]: visit.gave for visit in recording.visits if visit.name in place}
    made: dict[Value, int] = {}
    outside = len(chain.blocks)  # what comes behind the last block, or before the first

    def allowed(value: Value, reader: int) -> bool:
        maker = made.get(value, reader)
        return maker == reader or (maker < reader and states[reader - 1] == value)  # an identity hands it on

    for note in recording.notes:
        own = next((place[name] for name in note.modules if name in place), outside)
        if not all(allowed(value, own) for value in note.reads):
            return False
        if own != outside:
            made.update((value, own) for value in note.writes if value not in made)
    return all(allowed(value, outside) for value in recording.outputs)


def _cuts_cleanly(chain: Chain, recording: Recording, layers: Sequence[LayerTrace]) -> bool:
    """Whether each weight is read, and the shortcut behind it comes in, within one block, or before all, or after."""
    blocks, outside, place = set(chain.blocks), "head", {}
    for note in recording.notes:
        own = next((name for name in note.modules if name in blocks), None)
        outside = outside if own is None else "tail"
        place[id(note)] = outside if own is None else f"block {own}"
    known = {id(weight_of(recording.model, layer.name)): layer for layer in layers}
    places: dict[int, set[str]] = defaultdict(set)
    for note in recording.notes:
        if note.weight in known:
            places[note.weight].add(place[id(note)])
            if known[note.weight].follow.shortcut:
                places[note.weight].add(place[id(_sum_behind(recording, note, known[note.weight]))])
    return all(len(found) == 1 for found in places.values())


def _sum_behind(recording: Recording, note: Note, layer: LayerTrace) -> Note | None:
    """The sum that a layer's shortcut comes in by."""
    ((_, after),) = recording.behind(note.writes[0])
    if layer.follow.norm is not None and after is not None:
        ((_, after),) = recording.behind(after.writes[0])
    return after


@torch.no_grad()
def _same_outputs(chain: Chain, model: nn.Module, layers: Sequence[LayerTrace], batch: Batch, around: Around) -> bool:
    """Whether a walk over the segments, each of them run twice from its state, gives what the model gives."""
    # A model may change its input in place: every run has a copy.
    with around(chain, None):
        expected, state = outputs_in(run_on(model, mapped(batch, Tensor.clone))), None
    try:
        for segment in chain.segments(layers):
            with around(chain, segment):
                first, second = (chain.run(model, segment, mapped(batch, Tensor.clone), state) for _ in range(2))
            if not alike(first, second):
                return False
            state = second
    except Exception:
        return False
    return bool(expected) and alike(outputs_in(state), expected)


def outputs_in(result: Any) -> list[Tensor]:
    """The tensors among what a model returns, an object with attributes included."""
    return list(tensors_in(result)) or list(tensors_in(getattr(result, "__dict__", {})))


def alike(one: Any, other: Any) -> bool:
    pairs = list(tensors_in(one)), list(tensors_in(other))
    return len(pairs[0]) == len(pairs[1]) and all(map(_close, *pairs))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point() or not other.is_floating_point():
        return torch.equal(one, other)
    one, other = (tensor.double().nan_to_num(0.0, 1.0, -1.0) for tensor in (one, other))
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()) if other.numel() else 0.0)
