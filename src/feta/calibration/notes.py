"""A forward pass as notes: which functions ran, the values they read and wrote, and where values come from and go."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from feta.layers import Operator

# These hand on the values they are given, so that what follows them follows the layer.
TRANSPARENT = frozenset({"dropout", "dropout_", "flatten", "reshape", "view", "contiguous", "identity"})

# These pick rows where they are given a tensor to pick by.
PICKING = frozenset({"__getitem__", "index_select", "masked_select", "gather", "take_along_dim"})

Value = tuple[int, int]  # a tensor, and how often it has been written to in place


@dataclass
class Note:
    """One function call: the values it read and wrote, their shapes, and the modules around it. No tensor is held."""

    name: str
    reads: list[Value]
    writes: list[Value]
    given: list[torch.Size]  # shapes of the tensors it was called with
    shape: torch.Size  # of the first it gave
    modules: tuple[str, ...]
    plain: bool  # two arguments, by position
    parameters: frozenset[int]  # ids of those among its arguments
    operator: Operator | None = None  # where it reads a weight …
    weight: int = 0  # … this one, by id
    bias: Value | None = None

    @property
    def hands_on(self) -> bool:
        return self.name in TRANSPARENT


@dataclass
class Visit:
    """One call of a module: the value it was given first, and what it gave first, of how many things (0: alone)."""

    name: str
    modules: tuple[str, ...]  # around it, from the outermost
    given: Value | None
    gave: Value | None = None
    width: int = 0
    open: bool = True


@dataclass
class Recording:
    """A forward pass of a model."""

    model: nn.Module
    notes: list[Note]
    visits: list[Visit]
    inputs: list[Value]
    outputs: list[Value]
    samples: int
    several: bool = False  # whether more is returned than the one output that is compared

    def __post_init__(self) -> None:
        self.readers: dict[Value, list[Note]] = defaultdict(list)
        self.writer: dict[Value, Note] = {}
        for note in self.notes:
            for value in note.reads:
                self.readers[value].append(note)
            for value in note.writes:
                self.writer.setdefault(value, note)

    def behind(
        self, value: Value, through: Callable[[Note], bool] = lambda note: note.hands_on
    ) -> Iterator[tuple[str, Note | None]]:
        """The functions that read a value, or what some functions hand on of it; "output": the model's caller."""
        if value in self.outputs:
            yield "output", None
        for note in self.readers[value]:
            if not through(note):
                yield note.name, note
                continue
            for written in note.writes:
                if written != value:  # dropout in eval mode gives back what it was given
                    yield from self.behind(written, through)

    def reads_input(self, value: Value) -> bool:
        """Whether a value comes from the model's inputs by functions without weights alone."""
        return all(note is not None and not note.parameters for note in self._makers(value))

    def picked(self, value: Value | None) -> bool:
        """Whether the rows of a value are picked by what the network computes, as those of an expert are."""
        seen: set[Value] = set()
        while value is not None and value not in seen and (note := self.writer.get(value)) is not None:
            if note.name in PICKING and any(map(self.computed, note.reads[1:])):
                return True
            if not note.reads or note.name.endswith("_like") or note.name.startswith("new_"):
                return False
            seen.add(value)
            value = note.reads[0]
        return False

    def computed(self, value: Value) -> bool:
        return any(note is not None and note.parameters for note in self._makers(value))

    def _makers(self, value: Value) -> Iterator[Note | None]:
        """The functions that a value comes from; None: it is a part of the model."""
        seen, todo = set(self.inputs), [value]
        while todo:
            value = todo.pop()
            if value not in seen:
                seen.add(value)
                yield (note := self.writer.get(value))
                todo += [] if note is None else note.reads
