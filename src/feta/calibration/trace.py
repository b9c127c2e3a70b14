"""One forward pass, looked at closely: which layers run, what each reads, and what follows it.

Every function that touches a tensor is noted with what it read and wrote. What a layer's solver must know is read
from these notes: layers with one and the same input, the batch-norm, shortcut and ReLU behind a layer, and which
layers read the model's input or write its output.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from feta.calibration.inputs import Batch, size_of
from feta.calibration.model import device_of, evaluating, float_dtype, place, run_on
from feta.calibration.operators import attention, name_of, reading_of
from feta.layers import LayerView, Operator, owner_of, prunable_names
from feta.problem import Activation

# These hand on the values they are given, so that what follows them follows the layer.
TRANSPARENT = frozenset({"dropout", "dropout_", "flatten", "reshape", "view", "contiguous", "identity"})
ADD = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})
# What may lie between the last layer of a model and its outputs.
SCORES = TRANSPARENT | {"softmax", "log_softmax", "sigmoid", "squeeze", "squeeze_", "float", "to", "__getitem__"}

Value = tuple[int, int]  # a tensor, and how often it has been written to in place


@dataclass(frozen=True)
class Follow:
    """What the network does to a layer's outputs before anything else reads them.

    norm: the name of a batch-norm; its scale and shift are part of the layer.
    shortcut: whether a tensor of the same shape is added.
    activation: what comes then.
    """

    norm: str | None = None
    shortcut: bool = False
    activation: Activation = Activation.LINEAR


@dataclass(frozen=True)
class LayerTrace:
    """One layer as seen in one forward pass."""

    name: str
    operator: Operator
    calls: int
    rows: float  # for one sample
    entries: float  # of its input and output, for one sample
    source: Value  # its input: layers with the same one are served together
    shape: tuple[int, ...]  # of the input of one sample
    places: tuple[tuple[str, ...], ...]  # the modules around each call, from the outermost
    consumers: tuple[str, ...]  # functions that read its output
    follow: Follow
    reads_input: bool = False  # nothing with a weight comes before it
    leaves: bool = False  # its outputs are the model's

    @property
    def activation(self) -> Activation:
        """ReLU where that alone reads the layer's own outputs, batch-norms and shortcuts not looked through."""
        found = _activation(self.consumers)
        return found if found is Activation.RELU else Activation.LINEAR


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
    outputs = [mode.value(tensor) for tensor in tensors_in(result)]
    return Recording(model, mode.notes, mode.visits, inputs, outputs, size_of(batch))


def trace_layers(recording: Recording) -> list[LayerTrace]:
    """The prunable layers that ran, in order of execution; of layers with one weight the first alone."""
    model = recording.model
    names: dict[int, str] = {}
    for name in prunable_names(model):
        module, weight, _ = owner_of(model, name)
        if module._parameters.get(weight) is not None:
            names.setdefault(id(module._parameters[weight]), name)
    found: dict[str, list[Note]] = defaultdict(list)
    for note in recording.notes:
        if note.operator is not None and note.weight in names:
            found[names[note.weight]].append(note)
    return [_trace(recording, name, notes) for name, notes in found.items()]


def untraced(model: nn.Module) -> list[LayerTrace]:
    """All prunable layers in the order of definition, for a model that cannot be run: nothing is known of them."""
    names, found = prunable_names(model), []
    for index, name in enumerate(names):
        module, _, _ = owner_of(model, name)
        ends = index == 0, index == len(names) - 1
        operator = LayerView.of(model, name).operator if module._parameters.get("weight") is not None else Operator()
        found.append(LayerTrace(name, operator, 1, 0.0, 0.0, (index, 0), (), ((),), (), Follow(), *ends))
    return found


def _trace(recording: Recording, name: str, notes: Sequence[Note]) -> LayerTrace:
    (first, *others), z, x = notes, notes[0].shape, notes[0].given[0]
    assert first.operator is not None  # by which it was found
    after = [step for note in notes for step in recording.behind(note.writes[0])]
    scores = [step for note in notes for step in recording.behind(note.writes[0], SCORES)]
    positions = z.numel() // z[1] if first.operator.spatial else z.numel() // z[-1]
    consumers = tuple(kind for kind, _ in after)
    return LayerTrace(
        name,
        first.operator,
        len(notes),
        positions * len(notes) / recording.samples,
        (x.numel() + z.numel()) * len(notes) / recording.samples,
        first.reads[0],
        tuple(x[1:]),
        tuple(note.modules for note in notes),
        consumers,
        Follow(activation=_activation(consumers)) if others else _follow(recording, first),
        all(recording.reads_input(note.reads[0]) for note in notes),
        bool(scores) and all(kind == "output" for kind, _ in scores),
    )


def _activation(consumers: Sequence[str]) -> Activation:
    """The activation when it is all that reads the output; linear targets are right for all else."""
    names = {name.removesuffix("_") for name in consumers}
    return Activation(names.pop()) if len(names) == 1 and names <= set(Activation) else Activation.LINEAR


def _follow(recording: Recording, note: Note) -> Follow:
    """The batch-norm and the shortcut behind a layer, as far as nothing else reads what lies between."""
    assert note.operator is not None
    norm, shortcut, z, spatial = None, False, note.shape, note.operator.spatial
    after = list(recording.behind(note.writes[0]))
    if len(after) == 1 and (one := after[0][1]) is not None and _scales(recording, one, z, spatial):
        norm, after = one.modules[-1], list(recording.behind(one.writes[0]))
    if len(after) == 1 and (one := after[0][1]) is not None and _adds_rows(one, z, spatial):
        shortcut, after = True, list(recording.behind(one.writes[0]))
    return Follow(norm, shortcut, _activation([kind for kind, _ in after]))


def _scales(recording: Recording, note: Note, z: torch.Size, spatial: int) -> bool:
    """Whether a note is a batch-norm in eval mode: a fixed scale and shift of this layer's outputs alone."""
    if note.name != "batch_norm" or not note.modules or note.shape != z or not (spatial or len(z) == 2):
        return False
    norm = recording.model.get_submodule(note.modules[-1])
    calls = sum(visit.name == note.modules[-1] for visit in recording.visits)
    return isinstance(norm, _BatchNorm) and norm.running_mean is not None and norm.bias is not None and calls == 1


def _adds_rows(note: Note, z: torch.Size, spatial: int) -> bool:
    """Whether a note is the plain sum of a layer's output and another tensor with the same rows."""
    shapes = note.given
    if note.name not in ADD or not note.plain or len(set(note.reads)) != 2 or shapes[0] != shapes[1]:
        return False
    flat = not spatial and shapes[0].numel() == z.numel() and shapes[0][-1] == z[-1]
    return shapes[0] == z or flat


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
