"""Which layers of a model are pruned, and to which sparsity.

By default every Linear but the last one: in the networks of the paper these are the hidden fully
connected layers. Names may be shell patterns: "fc*", "encoder.*.mlp.*".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from feta.allocation import allocate
from feta.errors import ConfigError, ModelError
from feta.layers import PRUNABLE, LayerView
from feta.sparsity import Sparsity, check_share

SparsityRequest = float | Mapping[str, float]


def prunable_names(model: nn.Module) -> list[str]:
    """Every Linear and Conv2d by its dotted name, in the order the model defines them."""
    return [name for name, module in model.named_modules() if isinstance(module, PRUNABLE)]


def select(model: nn.Module, names: Sequence[str], layers: Sequence[str] | str | None) -> list[str]:
    """The layers to prune out of `names` (in order of execution), by patterns or by the default rule."""
    if layers is not None:
        patterns = [layers] if isinstance(layers, str) else list(layers)
        _check_used(patterns, names)
        return [name for name in names if _first_match(name, patterns) is not None]
    linear = [name for name in names if isinstance(model.get_submodule(name), nn.Linear)]
    if len(linear) < 2:
        raise ModelError(
            f"model must have two or more Linear layers for the default choice (every Linear but the last), "
            f"got {linear}; name the layers to prune with layers=, out of {list(names)}"
        )
    return linear[:-1]


def targets(
    model: nn.Module, chosen: Sequence[str], sparsity: SparsityRequest, allocation: str
) -> dict[str, Sparsity]:
    """An exact target for each chosen layer; with a mapping, layers that match no pattern are left out."""
    if not isinstance(sparsity, Mapping):
        weights = {name: LayerView(model.get_submodule(name), name).weight for name in chosen}
        return allocate(weights, check_share(sparsity), allocation)
    for pattern, share in sparsity.items():
        check_share(share, f"sparsity['{pattern}']")
    patterns = list(sparsity)
    _check_used(patterns, chosen)
    matches = {name: _first_match(name, patterns) for name in chosen}
    return {name: Sparsity(sparsity[pattern]) for name, pattern in matches.items() if pattern is not None}


def _first_match(name: str, patterns: Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _check_used(patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"layers must name Linear or Conv2d layers of the model, "
                f"got '{pattern}' which matches none of {list(names)}"
            )
