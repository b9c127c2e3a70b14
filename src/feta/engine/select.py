"""Which layers of a model are pruned, and to which sparsity.

By default every Linear but the last one: in the networks of the paper these are the hidden fully
connected layers. Names may be shell patterns: "fc*", "encoder.*.mlp.*".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from feta.allocation import MEASURED, allocate
from feta.allocation.budget import Curve
from feta.errors import ConfigError, ModelError
from feta.layers import PRUNABLE, LayerView
from feta.sparsity import Sparsity, check_share

SparsityRequest = float | Mapping[str, float]


def prunable_names(model: nn.Module) -> list[str]:
    """Every Linear and Conv2d by its dotted name, in the order the model defines them."""
    return [name for name, module in model.named_modules() if isinstance(module, PRUNABLE)]


def select(model: nn.Module, names: Sequence[str], layers: Sequence[str] | str | None) -> list[str]:
    """The layers to prune out of `names` (those that run, in that order), by patterns or the default rule."""
    idle = [name for name in prunable_names(model) if name not in names]
    if layers is not None:
        patterns = [layers] if isinstance(layers, str) else list(layers)
        if not patterns:
            raise ConfigError("layers must name at least one layer, got none")
        _check_used(patterns, [*names, *idle], "layers")
        _check_runs([name for name in idle if _first_match(name, patterns) is not None])
        return [name for name in names if _first_match(name, patterns) is not None]
    linear, unused = (
        [name for name in group if isinstance(model.get_submodule(name), nn.Linear)]
        for group in (names, idle)
    )
    _check_runs(unused)
    if len(linear) < 2:
        raise ModelError(
            f"model must have two or more Linear layers for the default choice (every Linear but the last), "
            f"got {linear}; name the layers to prune with layers=, out of {list(names)}"
        )
    return linear[:-1]


def check_untied(model: nn.Module, chosen: Sequence[str]) -> None:
    """The second of two layers with one weight would undo what the first was fitted to."""
    owner: dict[int, str] = {}
    for name in chosen:
        weight = model.get_submodule(name)._parameters.get("weight")  # None: computed, and refused elsewhere
        first = name if weight is None else owner.setdefault(id(weight), name)
        if first != name:
            raise ModelError(
                f"layers to prune must have weights of their own, got '{first}' and '{name}' with one weight; "
                f"name one of them alone with layers="
            )


def targets(
    model: nn.Module,
    chosen: Sequence[str],
    sparsity: SparsityRequest,
    allocation: str,
    measure: Callable[[], Mapping[str, Curve]] | None = None,
) -> dict[str, Sparsity]:
    """An exact target for each chosen layer; with a mapping, layers that match no pattern are left out.

    measure: gives the error–count curve of each chosen layer, for the allocations that go by them.
    """
    if not isinstance(sparsity, Mapping):
        share = check_share(sparsity)
        weights = {name: LayerView(model.get_submodule(name), name).weight for name in chosen}
        curves = measure() if measure is not None and allocation in MEASURED else None
        return allocate(weights, share, allocation, curves)
    if allocation != "uniform":
        raise ConfigError(f"allocation must be uniform where sparsity is per layer, got '{allocation}'")
    for pattern, share in sparsity.items():
        check_share(share, f"sparsity['{pattern}']")
    patterns = list(sparsity)
    if not patterns:
        raise ConfigError("sparsity must name at least one layer, got {}")
    _check_used(patterns, chosen, "sparsity")
    matches = {name: _first_match(name, patterns) for name in chosen}
    return {name: Sparsity(sparsity[pattern]) for name, pattern in matches.items() if pattern is not None}


def _first_match(name: str, patterns: Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _check_used(patterns: Sequence[str], names: Sequence[str], where: str) -> None:
    fact = "name Linear or Conv2d layers of the model" if where == "layers" else "name layers that are pruned"
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"{where} must {fact}, got '{pattern}' which matches none of {list(names)}")


def _check_runs(idle: Sequence[str]) -> None:
    if idle:
        raise ModelError(
            f"layers to prune must run in the model's forward pass, got {list(idle)} which do not; "
            "name the others with layers="
        )
