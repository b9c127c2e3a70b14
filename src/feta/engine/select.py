"""Which layers of a model are pruned, and to which sparsity.

By default every Linear but the last one, which in the paper's networks are the hidden fully connected layers.
"""

from collections.abc import Mapping, Sequence

from torch import nn

from feta.allocation import Allocation
from feta.allocation.base import Budget
from feta.allocation.measure import Probe
from feta.errors import ConfigError, ModelError
from feta.layers import LayerView, first_match, matching, prunable_names
from feta.sparsity import Sparsity, check_share

SparsityRequest = float | Mapping[str, float]


def select(model: nn.Module, names: Sequence[str], layers: Sequence[str] | str | None) -> list[str]:
    """The layers to prune out of `names` (those that run, in that order), by patterns or the default rule."""
    idle = [name for name in prunable_names(model) if name not in names]
    if layers is not None:
        chosen = matching([*names, *idle], layers)
    else:
        linear = [name for name in names if isinstance(model.get_submodule(name), nn.Linear)]
        if len(linear) < 2:
            raise ModelError(
                f"model must have two or more Linear layers for the default choice (every Linear but the last), "
                f"got {linear}; name the layers to prune with layers=, out of {list(names)}"
            )
        chosen = linear[:-1] + [name for name in idle if isinstance(model.get_submodule(name), nn.Linear)]
    unused = [name for name in chosen if name in idle]
    if unused:
        raise ModelError(
            f"layers to prune must run in the model's forward pass, got {unused} which do not; "
            "name the others with layers="
        )
    owner: dict[int, str] = {}
    for name in chosen:  # the second of two layers with one weight would undo what the first was fitted to
        weight = model.get_submodule(name)._parameters.get("weight")  # None: computed, and refused elsewhere
        first = name if weight is None else owner.setdefault(id(weight), name)
        if first != name:
            raise ModelError(
                f"layers to prune must have weights of their own, got '{first}' and '{name}' with one weight; "
                f"name one of them alone with layers="
            )
    return chosen


def targets(
    model: nn.Module, chosen: Sequence[str], sparsity: SparsityRequest, spread: Allocation, probe: Probe | None = None
) -> dict[str, Sparsity]:
    """An exact target for each chosen layer; with a mapping, layers that match no pattern are left out.

    probe: what an allocation that needs data measures layers with.
    """
    if isinstance(sparsity, Mapping):
        if spread.name != "uniform":
            raise ConfigError(f"allocation must be uniform where sparsity is per layer, got '{spread.name}'")
        for pattern, share in sparsity.items():
            check_share(share, f"sparsity['{pattern}']")
        names = matching(chosen, list(sparsity), "sparsity")
        matched = ((name, first_match(name, sparsity)) for name in names)
        return {name: Sparsity(sparsity[pattern]) for name, pattern in matched if pattern is not None}
    share = check_share(sparsity)
    weights = {name: LayerView(model.get_submodule(name), name).weight for name in chosen}
    kept = spread.allocate(Budget(weights, share, probe))
    if set(kept) != set(chosen):
        raise ConfigError(f"allocation '{spread.name}' must give a number for each of {list(chosen)}, got {kept}")
    return {name: Sparsity(nonzeros=kept[name]) for name in chosen}
