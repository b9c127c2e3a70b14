"""Neurons that do nothing are taken out of a Sequential: its layers get smaller and its outputs stay.

Between two Linear layers with elementwise functions in between (and a BatchNorm1d in eval mode), a neuron can go if

    its incoming weights are all zero:  it is the constant c = f(bias), and W2 c goes into the next bias, or
    its outgoing weights are all zero:  nobody reads it.

Layers are left alone where they are used twice, have hooks, or stand in a class of their own.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from feta.inference.example import hooked

ELEMENTWISE: set[type[nn.Module]] = {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid}
ELEMENTWISE |= {nn.Hardswish, nn.Softplus, nn.Identity, nn.Dropout}


def plain_sequentials(model: nn.Module) -> list[nn.Sequential]:
    """Those whose forward is known: torch's own class, without hooks."""
    return [module for module in model.modules() if type(module) is nn.Sequential and not hooked(module)]


def used_once(model: nn.Module) -> set[nn.Module]:
    """Modules without hooks that stand in one place."""
    places = Counter(module for parent in model.modules() for module in parent._modules.values())
    return {module for module, count in places.items() if module and count == 1 and not hooked(module)}


@torch.no_grad()
def shrink(model: nn.Module, inputs: Mapping[nn.Module, Mapping[int, Tensor]]) -> int:
    """Take dead neurons out, in place. `inputs`: of the layers that were called. Returns how many neurons went."""
    gone, single = 0, used_once(model)
    for sequential in plain_sequentials(model):
        names = list(sequential._modules)
        places = [i for i, name in enumerate(names) if _fits(sequential._modules[name], single, inputs)]
        for i, j in pairwise(places):
            between = [sequential._modules[name] for name in names[i + 1 : j]]
            one, two = (sequential._modules[names[k]] for k in (i, j))
            if all(middle in single and _passes(middle, one, inputs) for middle in between if middle is not None):
                gone += _cut(sequential, names[i], names[i + 1 : j], names[j])
                # The new layers take the place of the old ones in what is known.
                inputs = {**inputs, **{sequential._modules[names[k]]: inputs[old] for k, old in ((i, one), (j, two))}}
    return gone


def _fits(module: nn.Module | None, single: set[nn.Module], inputs: Mapping[nn.Module, object]) -> bool:
    return type(module) is nn.Linear and module in single and module in inputs


def _passes(module: nn.Module, before: nn.Module | None, inputs: Mapping[nn.Module, Mapping[int, Tensor]]) -> bool:
    if type(module) is nn.BatchNorm1d:
        rows = all(x.ndim == 2 for x in inputs[before].values()) if before is not None else False
        return rows and module.running_mean is not None and not module.training
    return type(module) in ELEMENTWISE


def _cut(parent: nn.Sequential, first: str, between: list[str], second: str) -> int:
    one, two = (cast(nn.Linear, parent.get_submodule(name)) for name in (first, second))
    constant, unread = (one.weight == 0).all(1), (two.weight == 0).all(0)
    keep = ~(constant | unread)
    if bool(keep.all()) or not bool(keep.any()):
        return 0
    level = one.weight.new_zeros(1, one.out_features) if one.bias is None else one.bias[None].clone()
    for name in between:
        level = parent.get_submodule(name)(level)
    moved = constant & ~unread
    shift = two.weight[:, moved] @ level[0, moved]
    bias = shift if two.bias is None else two.bias + shift
    parent._modules[first] = _linear(one.weight[keep], None if one.bias is None else one.bias[keep])
    parent._modules[second] = _linear(two.weight[:, keep], bias if two.bias is not None or shift.any() else None)
    for name in between:
        middle = parent.get_submodule(name)
        if isinstance(middle, nn.BatchNorm1d):
            middle.num_features = int(keep.sum())
            for entries in (middle._parameters, middle._buffers):
                for key, value in entries.items():
                    if isinstance(value, Tensor) and value.ndim == 1:
                        cut = value[keep]
                        entries[key] = nn.Parameter(cut) if isinstance(value, nn.Parameter) else cut  # type: ignore[assignment]
    return int((~keep).sum())


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):  # nothing is drawn: the weights follow
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return layer.eval()
