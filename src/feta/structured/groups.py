"""Outputs that can only go together, and the surgery: what Torch-Pruning's dependency graph says, and does.

A group is what hangs together: outputs of one or several layers (a residual stream has many), batch-norms and the
like on the way, and the inputs of the layers that read them. What the graph says is not taken on trust: half of a
group is removed from a copy, whose outputs must be those of a network that merely no longer reads it. Groups that
fail (norms over all channels, paddings of channels, outputs of the model) are left as they are.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch
from feta.calibration.model import call, outputs_of
from feta.calibration.trace import LayerTrace
from feta.errors import ModelError
from feta.layers import CONVOLUTIONS, IN_PROJ
from feta.plugins import needed

SPLITS = frozenset({"transpose", "permute", "movedim", "swapaxes", "unflatten", "chunk", "split", "unbind"})
SAME = 1e-3  # relative difference of outputs up to which surgery has changed nothing


@dataclass(frozen=True)
class Group:
    """Outputs of layers in units that go or stay as a whole; an index is (units, channels of each)."""

    root: str  # the layer that the others hang on
    outputs: dict[str, Tensor]  # layer -> the outputs it loses with each unit
    inputs: dict[str, Tensor]  # layer that reads them -> the inputs it loses with each unit

    @property
    def units(self) -> int:
        return len(self.outputs[self.root])


def torch_pruning() -> Any:
    """The package. Raises ConfigError where it is missing."""
    extra = "torch-pruning, or in a clone of feta: python -m pip install -c constraints.txt '.[structured]'"
    return needed("torch_pruning", "feta.shrink", "torch-pruning", extra)


def graph_of(model: nn.Module, batch: Batch) -> Any:
    """The dependency graph of a model, which it keeps a hold of. Raises ModelError where it cannot be traced."""
    model.requires_grad_(True)  # it is read off autograd's graph

    def forward(network: nn.Module, given: Batch) -> Tensor:
        return outputs_of(call(network, given))

    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            return torch_pruning().DependencyGraph().build_dependency(model, batch, forward, verbose=False)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(
            f"model must be one that Torch-Pruning can trace, got {type(error).__name__}: {error}; feta.prune prunes "
            "single weights of any model"
        ) from error


def find_groups(model: nn.Module, batch: Batch, traces: Sequence[LayerTrace]) -> tuple[list[Group], dict[str, str]]:
    """The groups that can be removed from, and of the others the root and the reason.

    traces: of the layers whose inputs are known, so that they can be refitted.
    """
    model = copy.deepcopy(model).float()  # rounding of half precision would hide what is tried
    graph, found, readable = graph_of(copy.deepcopy(model), batch), [], [trace.name for trace in traces]
    # The graph of what attention does with them does not end.
    refused = {
        trace.name: "its outputs are split into heads or parts"
        for trace in traces
        if not trace.operator.spatial and not SPLITS.isdisjoint(trace.consumers)
    }
    split = [graph.model.get_submodule(name) for name in refused if not name.endswith(IN_PROJ)]
    for items in graph.get_all_groups(split):
        group = _read(graph, items)
        unknown = sorted(set(group.inputs) - set(readable))
        if not group.inputs:
            refused[group.root] = "its outputs are the model's"
        elif unknown:
            refused[group.root] = f"it is read by {', '.join(unknown)}, which cannot be refitted"
        elif group.units < 2:
            refused[group.root] = "it has one channel alone"
        else:
            found.append(group)
    if all_alike(model, batch, found):
        return found, refused
    good = []
    for group in found:
        if all_alike(model, batch, [group]):
            good.append(group)
        else:
            refused[group.root] = "what is removed leaves a trace: a norm over all channels, or a fixed shape"
    return good, refused


def _read(graph: Any, items: Any) -> Group:
    names = graph._module2name
    ties = max((_tied(item.dep.target.module) for item in items), default=1)
    root = items[0].dep.target.module
    units = len(items[0].idxs) // ties
    outputs: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for item in items:
        module, handler = item.dep.target.module, item.dep.handler
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            continue
        reads = graph.is_in_channel_pruning_fn(handler) and not graph.is_out_channel_pruning_fn(handler)
        # Groups of a convolution stay equal: a unit is the channel of the same place in each of them.
        place = torch.tensor(item.root_idxs) % units
        channels = torch.tensor(item.idxs)[place.argsort(stable=True)]
        (inputs if reads else outputs)[names[module]] = channels.reshape(units, -1)
    return Group(names[root], outputs, inputs)


def _tied(module: Any) -> int:
    """How many channels go together: one of each group of a grouped convolution; of a depthwise one each alone."""
    if not isinstance(module, CONVOLUTIONS) or module.groups in (1, module.out_channels):
        return 1
    return int(module.groups)


def without(model: nn.Module, groups: Sequence[Group], gone: Mapping[str, Tensor]) -> nn.Module:
    """A copy in which nobody reads the units that are gone (root -> their indices)."""
    masked = copy.deepcopy(model)
    with torch.no_grad():
        for group in groups:
            for name, channels in group.inputs.items():
                layer = masked.get_submodule(name)
                weight: Tensor = layer.weight  # type: ignore[assignment]
                parts, width = getattr(layer, "groups", 1), weight.shape[1]
                for part, block in enumerate(weight.chunk(parts)):
                    lost = channels[gone[group.root]].flatten() - part * width
                    block[:, lost[(lost >= 0) & (lost < width)].to(weight.device)] = 0
    return masked


def cut(model: nn.Module, batch: Batch, groups: Sequence[Group], gone: Mapping[str, Tensor]) -> nn.Module:
    """A copy in which units are not there any more; modes and frozen weights stay as they are."""
    small = copy.deepcopy(model)
    graph = graph_of(small, batch)
    for group in groups:
        channels = group.outputs[group.root][gone[group.root]].flatten().tolist()
        if channels:
            root = small.get_submodule(group.root)
            handler = graph.get_pruner_of_module(root).prune_out_channels
            graph.get_pruning_group(root, handler, channels).prune()
    for (_, before), (_, after) in zip(model.named_modules(), small.named_modules(), strict=True):
        after.training = before.training
    for (_, old), (_, new) in zip(model.named_parameters(), small.named_parameters(), strict=True):
        new.requires_grad_(old.requires_grad)
    return small


@torch.no_grad()
def all_alike(model: nn.Module, batch: Batch, groups: Sequence[Group]) -> bool:
    """Whether half of the units can be cut out of groups, with outputs as if nobody read them."""
    gone = {group.root: torch.arange(0, group.units, 2)[: group.units - 1] for group in groups}
    expected = outputs_of(call(without(model, groups, gone).eval(), batch))
    try:
        found = outputs_of(call(cut(model, batch, groups, gone).eval(), batch))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # shapes that no longer fit, or a group that the graph cannot cut
        return False
    return same(found, expected)


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether outputs are equal but for rounding."""
    if found.shape != expected.shape:
        return False
    found, expected = found.double(), expected.double()
    return bool((found - expected).norm() <= SAME * expected.norm())
