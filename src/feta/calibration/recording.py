"""One forward pass, noted down: every module, and every function with the values it read and wrote."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from feta.calibration.inputs import Batch, size_of
from feta.calibration.model import device_of, evaluating, float_dtype, place, run_on
from feta.calibration.operators import attention, name_of, reading_of
from feta.layers import Operator

# These hand on the values they are given, so that what follows them follows the layer.
TRANSPARENT = frozenset({"dropout", "dropout_", "flatten", "reshape", "view", "contiguous", "identity"})

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
    weighted: bool  # a parameter is among its arguments
    operator: Operator | None = None  # where it reads a weight …
    weight: int = 0  # … this one, by id


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

    def __post_init__(self) -> None:
        self.readers: dict[Value, list[Note]] = defaultdict(list)
        self.writer: dict[Value, Note] = {}
        for note in self.notes:
            for value in note.reads:
                self.readers[value].append(note)
            for value in note.writes:
                self.writer.setdefault(value, note)

    def behind(self, value: Value, through: frozenset[str] = TRANSPARENT) -> Iterator[tuple[str, Note | None]]:
        """The functions that read a value, or what some functions hand on of it; "output": the model's caller."""
        if value in self.outputs:
            yield "output", None
        for note in self.readers[value]:
            if note.name not in through:
                yield note.name, note
                continue
            for written in note.writes:
                if written != value:  # dropout in eval mode gives back what it was given
                    yield from self.behind(written, through)

    def reads_input(self, value: Value) -> bool:
        """Whether a value comes from the model's inputs by functions without weights alone."""
        seen, todo = set(self.inputs), [value]
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            note = self.writer.get(value)
            if note is None or note.weighted:
                return False
            todo += note.reads
        return True


def record(model: nn.Module, batch: Batch) -> Recording:
    """Run a model on a batch and note everything; hooks are on for that long."""
    batch = place(batch, device_of(model), float_dtype(model))
    mode = _Notes(model)
    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for name, module in model.named_modules():
            hooks = (module.register_forward_pre_hook, mode.enter), (module.register_forward_hook, mode.leave)
            for register, hook in hooks:
                stack.enter_context(register(partial(hook, name), with_kwargs=True))
        inputs = [mode.value(tensor) for tensor in tensors_in(batch)]
        with mode:
            result = run_on(model, batch)
    given_back = list(tensors_in(result)) or list(tensors_in(getattr(result, "__dict__", {})))
    outputs = [mode.value(tensor) for tensor in given_back]
    return Recording(model, mode.notes, mode.visits, inputs, outputs, size_of(batch))


class _Notes(TorchFunctionMode):
    """Notes every function that is called, functional calls included, and every module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.visits: list[Visit] = []
        self.modules: tuple[str, ...] = ()
        self.attending = False  # inside torch's attention, whose tensors have positions first
        self.parameters = {id(parameter) for parameter in model.parameters()}
        self.numbers = WeakIdKeyDictionary()  # tensor -> its number: an id may come again once a tensor is gone
        self.written: dict[int, int] = {}  # number -> how often in place

    def value(self, tensor: Tensor) -> Value:
        number: int = self.numbers.setdefault(tensor, len(self.written))
        return number, self.written.setdefault(number, 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            self.attending = True
            try:
                return attention(self, args, kwargs)
            finally:
                self.attending = False
        reading = reading_of(func, args, kwargs)
        given = ([reading.input] if reading else []) + list(tensors_in((args, kwargs)))
        reads = [self.value(tensor) for tensor in given]
        result = func(*args, **kwargs)
        name, tensors = name_of(func), list(tensors_in(result))
        if not tensors:
            return result
        for tensor in tensors:
            if name not in TRANSPARENT and any(tensor is one for one in given):  # in place
                self.written[self.value(tensor)[0]] += 1
        note = Note(
            name,
            reads,
            [self.value(tensor) for tensor in tensors],
            [tensor.shape for tensor in given],
            tensors[0].shape,
            self.modules,
            len(args) == len(given) == 2 and not kwargs,
            any(id(tensor) in self.parameters for tensor in given),
        )
        if reading is not None:
            note.operator, note.weight = replace(reading.operator, time_first=self.attending), id(reading.weight)
        if name.removesuffix("_") == "leaky_relu" and kwargs.get("negative_slope", *args[1:2] or [0.01]) != 0.01:
            note.name = "leaky_relu of another slope"
        if name.startswith("hardtanh") and (kwargs.get("min_val", -1.0), kwargs.get("max_val", 1.0)) == (0, 6):
            note.name = "relu6"  # as nn.ReLU6 calls it
        self.notes.append(note)
        return result

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        first = next(tensors_in((args, kwargs)), None)
        self.visits.append(Visit(name, self.modules, None if first is None else self.value(first)))
        self.modules += (name,)

    def leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.modules = self.modules[:-1]
        visit = next(visit for visit in reversed(self.visits) if visit.name == name and visit.open)
        several = isinstance(output, tuple | list)
        first = output[0] if several and output else output
        visit.gave = self.value(first) if isinstance(first, Tensor) else None
        visit.width, visit.open = len(output) if several else 0, False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)
