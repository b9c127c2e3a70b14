"""Linear layers and ReLUs that follow one another in a Sequential become one call of the kernel if that is faster."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from feta.inference import calls
from feta.inference.chain import Chain
from feta.inference.dead_neurons import plain_sequentials, used_once
from feta.inference.grouped import Grouped
from feta.inference.timing import Timer

SKIPPED = (nn.Identity, nn.Dropout)  # nothing at inference


@dataclass
class Run:
    """Neighbours in a Sequential: their names there, and the Linear layers with whether a ReLU follows."""

    names: list[str] = field(default_factory=list)
    layers: list[tuple[nn.Linear, bool]] = field(default_factory=list)


def fuse(
    model: nn.Module,
    originals: Mapping[nn.Module, nn.Linear],
    inputs: Mapping[nn.Module, Mapping[int, Tensor]],
    timer: Timer,
    cold: bool,
) -> int:
    """Replace runs by chains, in place, where measuring says so; how many modules are in one of them.

    originals: the dense form of each layer that may be part of one.  inputs: of the dense forms, by batch size.
    """
    if calls.kernels() is None:
        return 0
    single, joined = used_once(model), 0
    for sequential in plain_sequentials(model):
        for run in _runs(sequential, originals, single):
            kept = [sequential.get_submodule(name) for name in run.names]
            if not any(isinstance(module, Chain) for module in kept):
                continue
            chain = Chain([Grouped(layer.weight, layer.bias, relu) for layer, relu in run.layers])
            if _faster(chain, nn.Sequential(*kept), inputs[run.layers[0][0]], timer, cold):
                joined += len(run.names)
                sequential._modules[run.names[0]] = chain
                for name in run.names[1:]:
                    del sequential._modules[name]
    return joined


def _runs(sequential: nn.Sequential, originals: Mapping[nn.Module, nn.Linear], single: set[nn.Module]) -> list[Run]:
    runs = [Run()]
    for name, module in sequential.named_children():
        dense = originals.get(module)
        if module not in single or (dense is None and not runs[-1].layers):
            runs.append(Run())
        elif dense is not None and dense.weight.dtype == torch.float32:
            runs[-1].layers.append((dense, False))
            runs[-1].names.append(name)
        elif type(module) is nn.ReLU or type(module) in SKIPPED:
            layer, relu = runs[-1].layers[-1]
            runs[-1].layers[-1] = (layer, relu or type(module) is nn.ReLU)
            runs[-1].names.append(name)
        else:
            runs.append(Run())
    return [run for run in runs if len(run.names) > 1]


def _faster(chain: nn.Module, parts: nn.Module, inputs: Mapping[int, Tensor], timer: Timer, cold: bool) -> bool:
    gains = []
    with torch.inference_mode():
        for x in inputs.values():
            ways = {"parts": lambda x=x: parts(x), "chain": lambda x=x: chain(x)}
            ms = timer(ways, cold)
            gains.append(ms["parts"] / ms["chain"])
    return statistics.geometric_mean(gains) >= 1
