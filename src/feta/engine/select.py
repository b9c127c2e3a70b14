"""Which layers of a model are pruned, and to which sparsity.

By default every layer that can be pruned, but for convolutions that read the model's own input, layers whose outputs
are the model's own, and weights that are read by other functions too. A model may say which by an attribute
`default_layers`.
"""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from feta.allocation import Allocation, make_allocation
from feta.allocation.base import Budget
from feta.allocation.measure import Probe
from feta.calibration.trace import LayerTrace
from feta.errors import ConfigError, ModelError, quoted
from feta.layers import (
    CONVOLUTIONS,
    LayerView,
    first_match,
    made_plain,
    matching,
    owner_of,
    prunable_names,
    weight_of,
)
from feta.pages.words import some
from feta.problem import Pruner
from feta.pruners import METHODS, make
from feta.report import GIVES_OUTPUTS, READS_INPUT, Skipped
from feta.sparsity import Pattern, Sparsity, check_share

SparsityRequest = float | Mapping[str, float]
DEFAULT_SHARE = 0.9
ROUNDED = 0.005  # by so much a share may differ from a pattern's: two thirds are 0.67

# Of modules whose weights feta does not prune: why.
REASONS = {
    nn.Embedding: "a table that is looked up",
    nn.EmbeddingBag: "a table that is looked up",
    nn.RNNBase: "recurrent: its inputs depend on its own outputs",
    nn.RNNCellBase: "recurrent: its inputs depend on its own outputs",
    nn.modules.conv._ConvTransposeNd: "a transposed convolution",
    nn.Bilinear: "it has two inputs",
    nn.MultiheadAttention: "its queries, keys and values have weights of different widths",
}


def select(model: nn.Module, traces: Sequence[LayerTrace], layers: Sequence[str] | str | None) -> list[str]:
    """The layers to prune out of those that run, in that order, by patterns or the default rule."""
    first = _first_names(model)
    names = list(dict.fromkeys([*(trace.name for trace in traces), *prunable_names(model)]))
    if layers is None and isinstance(wished := getattr(model, "default_layers", None), list | tuple) and wished:
        layers = list(wished)
    if layers is None:
        chosen = [trace.name for trace in traces if spared(model, trace) is None]
        if not names:
            raise ModelError(
                "model must have a linear layer, a convolution or an attention to prune, got none that runs"
            )
        for name in [] if chosen else names:
            weight_of(model, name)  # one that is computed may be all that is in the way: its error has the cure
        if not chosen:
            all_of = some([name or type(model).__name__ for name in names])
            never = [f"{name} ({why})" for name, part in model.named_modules() if (why := _never(part)) is not None]
            besides = f"; what cannot be pruned: {some(never)}" if never else ""
            raise ModelError(
                "model must have a layer for the default choice, which leaves out the last one and convolutions that "
                f"read the input, got none; layers='*' prunes what can be: {all_of}{besides}"
            )
        return chosen
    _refuse_what_cannot(model, [layers] if isinstance(layers, str) else layers)
    chosen = list(dict.fromkeys(first.get(name, name) for name in matching(names, layers)))
    running = {trace.name for trace in traces}
    named = {first.get(name, name) for name in ([layers] if isinstance(layers, str) else layers)}
    for name in named & set(chosen):
        weight_of(model, name)
    unused = [name for name in chosen if name not in running and name in named]
    if unused or not running & set(chosen):
        raise ModelError(
            "layers to prune must have weights that an operator of the forward pass reads, got "
            f"{unused or chosen} which have not; name the others with layers="
        )
    return [trace.name for trace in traces if trace.name in chosen]


def _refuse_what_cannot(model: nn.Module, named: Sequence[str]) -> None:
    """Raise ConfigError for a module that is named, and that is listed as one that cannot be pruned."""
    modules = dict(model.named_modules())
    for name in named:
        why = _never(modules.get(name))
        if why is not None and not isinstance(modules[name], nn.MultiheadAttention):
            kind = type(modules[name]).__name__
            raise ConfigError(
                f"layers must name layers that can be pruned, got {quoted(name)} of class {kind}: {why}"
            )


def _never(module: nn.Module | None) -> str | None:
    """Why a module's weights cannot be pruned; None: nothing is known against it."""
    return next((why for kind, why in REASONS.items() if isinstance(module, kind)), None)


def spared(model: nn.Module, trace: LayerTrace) -> str | None:
    """Why the default choice leaves a layer as it is; None: it does not."""
    weight = weight_of(model, trace.name) if _has_weight(model, trace.name) else None
    if weight is None:
        return "its weight is computed"
    if any(module.weight is weight for module in model.modules() if isinstance(module, nn.Embedding)):
        return "its weight is an embedding's too"
    if trace.second_use:
        return trace.second_use
    if trace.leaves:
        return GIVES_OUTPUTS
    if trace.reads_input and isinstance(owner_of(model, trace.name)[0], CONVOLUTIONS):
        return READS_INPUT
    return None


def skipped(
    model: nn.Module, traces: Sequence[LayerTrace], chosen: Sequence[str], by_default: bool
) -> tuple[Skipped, ...]:
    """Every other module with a weight of two or more dimensions: its size, and why it was left as it is."""
    first, by_name = _first_names(model), {trace.name: trace for trace in traces}
    known, found = prunable_names(model), []
    for name in known:
        if name in chosen:
            continue
        module, key, _ = owner_of(model, name)
        size = getattr(module, key).numel()
        if first.get(name, name) != name:
            size, reason = 0, f"it has the weight of '{first[name]}'"
        elif not _has_weight(model, name):
            reason = f"its weight is computed, so that nothing could be written to it; {made_plain(module, key)}"
        elif name not in by_name:
            reason = "it does not run in the forward pass, or something reads its weight in another way"
        else:
            reason = (spared(model, by_name[name]) if by_default else None) or "it was not chosen"
        found.append(Skipped(name, type(module).__name__, size, reason))
    counted = {id(getattr(*owner_of(model, name)[:2])) for name in known}
    computed = tuple(f"{name}." for name in known if not _has_weight(model, name))  # their parts are they themselves
    for name, module in model.named_modules():
        if f"{name}.".startswith(computed):
            continue
        own = {
            key: p.numel()
            for key, p in module._parameters.items()
            if p is not None and p.ndim > 1 and id(p) not in counted
        }
        counted.update(id(module._parameters[key]) for key in own)
        if own:
            found += _others(name, module, own)
    return tuple(found)


def _others(name: str, module: nn.Module, own: Mapping[str, int]) -> Iterator[Skipped]:
    """A module of a kind that is not pruned; of one that nobody knows its weights, each by its own name."""
    kind = type(module).__name__
    why = next((why for known, why in REASONS.items() if isinstance(module, known)), None)
    if why is not None:
        yield Skipped(name, kind, sum(own.values()), why)
        return
    for key, count in own.items():
        yield Skipped(f"{name}.{key}".lstrip("."), kind, count, "not a kind feta prunes")


def _has_weight(model: nn.Module, name: str) -> bool:
    module, key, _ = owner_of(model, name)
    return module._parameters.get(key) is not None


def _first_names(model: nn.Module) -> dict[str, str]:
    """For each layer the first one with the same weight."""
    owner: dict[int, str] = {}
    names = [name for name in prunable_names(model) if _has_weight(model, name)]
    return {name: owner.setdefault(id(weight_of(model, name)), name) for name in names}


def share_asked(sparsity: SparsityRequest | None, pattern: Pattern | None) -> SparsityRequest:
    """The sparsity, where it was left out and a pattern says it too. Raises ConfigError where the two contradict."""
    said = None if pattern is None else pattern.share
    if sparsity is None and pattern is not None and said is None:
        raise ConfigError(
            f"sparsity must be given for pattern '{pattern}', which does not say how much stays, got none"
        )
    if sparsity is None:
        return DEFAULT_SHARE if said is None else float(said)
    for share in sparsity.values() if isinstance(sparsity, Mapping) else [sparsity]:
        if said is not None and abs(check_share(share) - said) > ROUNDED:
            raise ConfigError(f"sparsity must be {float(said):.4g} for pattern '{pattern}', or left out, got {share}")
    return sparsity


def check_pattern(pattern: Pattern | None, pruner: Pruner, allocation: str | Allocation | None) -> None:
    """Raise ConfigError for a method that keeps to no pattern, or a budget that a pattern leaves no room for."""
    if pattern is None:
        return
    if not pruner.needs.patterns:
        able = [name for name in METHODS if make(name).needs.patterns]
        raise ConfigError(f"method must be one of {able} for pattern '{pattern}', got '{pruner.name}'")
    if pattern.share is not None and allocation is not None and make_allocation(allocation).name != "uniform":
        name = make_allocation(allocation).name
        raise ConfigError(f"allocation must be uniform for pattern '{pattern}', which all layers have, got '{name}'")


def in_pattern(model: nn.Module, goals: Mapping[str, Sparsity], pattern: Pattern | None) -> dict[str, Sparsity]:
    """The goals in whole groups or blocks. Raises ConfigError for a layer that cannot have the pattern."""
    if pattern is None:
        return dict(goals)
    found = {}
    for name, goal in goals.items():
        view = LayerView.of(model, name)
        own = pattern.over(view.taps)
        try:
            own.count(view.d_in, view.d_out // view.groups, 1)  # of one group: a block lies in one
            kept = own.count(view.d_in, view.d_out, goal.count(view.weight.numel()))
        except ConfigError as error:
            raise ConfigError(f"layer '{name}': {error}") from None
        found[name] = Sparsity(nonzeros=kept, pattern=own)
    return found


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
    weights = {name: weight_of(model, name) for name in chosen}
    kept = spread.allocate(Budget(weights, share, probe))
    if set(kept) != set(chosen):
        raise ConfigError(f"allocation '{spread.name}' must give a number for each of {list(chosen)}, got {kept}")
    return {name: Sparsity(nonzeros=kept[name]) for name in chosen}
