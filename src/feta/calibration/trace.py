"""What a layer's solver must know of a network, read from the notes of one forward pass.

Which layers run, which have one and the same input, the batch-norm, shortcut and activation behind a layer, and which
layers read the model's input or write its output.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.calibration.notes import Note, Recording, Value
from feta.layers import LayerView, Operator, owner_of, prunable_names
from feta.problem import Activation

ADD = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})


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
    routed: bool = False  # the network itself picks the rows that reach it
    elsewhere: tuple[str, ...] = ()  # functions that read its weight and are no layer's

    @property
    def second_use(self) -> str:
        """What else its weight is for, in words; empty: nothing."""
        return f"its weight is read by {', '.join(self.elsewhere)} too" if self.elsewhere else ""

    @property
    def activation(self) -> Activation:
        """ReLU where that alone reads the layer's own outputs, batch-norms and shortcuts not looked through."""
        found = _activation(self.consumers)
        return found if found is Activation.RELU and self.operator.biased else Activation.LINEAR


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
    # A weight that is read with other strides or paddings in another place has no one set of rows.
    alike = {name: notes for name, notes in found.items() if len({note.operator for note in notes}) == 1}
    return [_trace(recording, name, notes) for name, notes in alike.items()]


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
    scores = [step for note in notes for step in recording.behind(note.writes[0], partial(_reshapes, recording))]
    positions = z.numel() // z[1] if first.operator.spatial else z.numel() // z[-1]
    consumers = tuple(kind for kind, _ in after)
    operator = replace(first.operator, biased=len({note.bias for note in notes}) == 1)
    return LayerTrace(
        name,
        operator,
        len(notes),
        positions * len(notes) / recording.samples,
        (x.numel() + z.numel()) * len(notes) / recording.samples,
        first.reads[0],
        tuple(x[1:]),
        tuple(note.modules for note in notes),
        consumers,
        _follow(recording, first)
        if not others
        else Follow(activation=_activation(consumers if operator.biased else ())),
        all(recording.reads_input(note.reads[0]) for note in notes),
        bool(scores) and all(kind == "output" for kind, _ in scores),
        any(recording.picked(note.reads[0]) for note in notes),
        tuple(sorted({n.name for n in recording.notes if first.weight in n.parameters and n.weight != first.weight})),
    )


def _reshapes(recording: Recording, note: Note) -> bool:
    """Whether a function may lie between the last layer of a model and its outputs: one that reads nothing else.

    A model that ends in an activation of hidden layers gives features.
    """
    computed = {value for value in note.reads if recording.computed(value)}
    return len(computed) == 1 and not note.parameters and note.name.removesuffix("_") not in set(Activation)


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
