"""Layers whose inputs may be put in another order: those that alone read the outputs of one layer before.

    layer before -> [batch-norm, activations, pooling] -> layer

Between the two every channel goes its own way, and nothing else reads what lies there. The outputs of the one, with
the batch-norm's entries, and the inputs of the other can then change places together: the network's function stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.calibration.notes import Note, Recording
from feta.calibration.trace import LayerTrace
from feta.layers import CONVOLUTIONS, LayerView, owner_of, weight_of
from feta.problem import Activation

POOLS = {f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)}
EACH = frozenset({*Activation, *POOLS, "dropout", "identity", "contiguous", "tanh", "sigmoid", "hardtanh", "elu"})


@dataclass(frozen=True)
class Link:
    """A layer, the one before it, and the batch-norms between them, by name."""

    layer: str
    before: str
    norms: tuple[str, ...] = ()


@dataclass
class _Walk:
    """The way back from a layer's input."""

    recording: Recording
    norms: list[str] = field(default_factory=list)

    def producer(self, note: Note) -> Note | None:
        """The call of the layer before; None: something else makes or reads what lies between."""
        recording, reader = self.recording, note
        while True:
            value = reader.reads[0]
            others = [one for one in recording.readers[value] if one is not reader and value not in one.writes]
            made = recording.writer.get(value)
            if made is None or others or value in recording.outputs:
                return None
            if made.operator is not None:
                return made
            if not self._goes_its_own_way(made):
                return None
            reader = made

    def _goes_its_own_way(self, note: Note) -> bool:
        if note.name != "batch_norm":
            return note.name.removesuffix("_") in EACH and len(note.reads) == 1
        norm = self.recording.model.get_submodule(note.modules[-1]) if note.modules else None
        once = sum(visit.name == note.modules[-1] for visit in self.recording.visits) == 1
        if not isinstance(norm, _BatchNorm) or not once or len(note.shape) == 3:
            return False
        self.norms.append(note.modules[-1])
        return True


def find_links(recording: Recording, layers: Sequence[LayerTrace]) -> dict[str, Link]:
    """The link of each layer that has one."""
    model = recording.model
    known = {id(weight_of(model, layer.name)): layer for layer in layers if _plain(model, layer)}
    notes = {note.weight: note for note in recording.notes if note.operator is not None and note.weight in known}
    found = {}
    for weight, note in notes.items():
        walk = _Walk(recording)
        made = walk.producer(note)
        before = known.get(made.weight) if made is not None else None
        if before is not None and before.operator.spatial == known[weight].operator.spatial:
            found[known[weight].name] = Link(known[weight].name, before.name, tuple(walk.norms))
    return found


def _plain(model: nn.Module, layer: LayerTrace) -> bool:
    """Whether a layer is a module with a weight of its own, used once, in one group."""
    module = owner_of(model, layer.name)[0]
    kind = isinstance(module, (nn.Linear, *CONVOLUTIONS))
    alone = layer.calls == 1 and not layer.elsewhere and layer.operator.groups == 1 and not layer.routed
    return kind and alone and module._parameters.get("weight") is not None


@torch.no_grad()
def reorder_(model: nn.Module, link: Link, order: Tensor) -> None:
    """Put the inputs of a layer into another order, and all that makes them."""
    layer, before = (LayerView.of(model, name) for name in (link.layer, link.before))
    layer.weight.copy_(layer.weight[:, order])
    norms = (model.get_submodule(name) for name in link.norms)
    parts = [part for norm in norms for part in (*norm.parameters(), *norm.buffers())]
    for tensor in (before.weight, before.bias_parameter, *parts):
        if tensor is not None and tensor.ndim:  # a batch-norm also counts its batches
            tensor.copy_(tensor[order])
