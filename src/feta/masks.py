"""Masks: which weights of a model are held at zero.

A mask is a bool tensor of the shape of a layer's weight, true where the weight may live. The zeros themselves say
what is pruned: they survive copy.deepcopy, a state_dict, a file and another process, and `masks_of` reads them.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.optim.optimizer import register_optimizer_step_post_hook

from feta.errors import ConfigError, ModelError
from feta.gates import gated
from feta.layers import matching, owner_of, prunable_names, weight_of


@gated
def masks_of(model: nn.Module, layers: Sequence[str] | str | None = None) -> dict[str, Tensor]:
    """Read the masks of a pruned model from its zeros.

        masks = feta.masks_of(pruned)  # {"fc1": tensor([[True, False, …

    model: any model, also in DistributedDataParallel.
    layers: names or patterns; by default every layer that can be pruned with a zero in its weight.

    Returns a bool tensor for each layer, true where its weight is not zero. Raises ConfigError for a pattern that
    matches nothing.
    """
    model = plain(model)
    names = prunable_names(model)
    # A weight that is computed, as under a parametrisation, is nobody's zeros.
    owners = {name: owner_of(model, name) for name in names}
    own = [name for name, (module, weight, _) in owners.items() if module._parameters.get(weight) is not None]
    chosen = own if layers is None else matching(names, layers)
    masks = {name: weight_of(model, name).detach() != 0 for name in chosen}
    return {name: mask for name, mask in masks.items() if layers is not None or not bool(mask.all())}


@gated
def torch_masks(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Hand the zeros of a model over to torch.nn.utils.prune, whose masks then hold them.

        from feta.masks import torch_masks

        train(torch_masks(result.model))

    model: it is changed in place: `weight` becomes `weight_orig` times `weight_mask`.
    masks: by layer name, true where a weight may live; by default the zeros that the model has.

    torch.nn.utils.prune.is_pruned(model) is true then, and prune.remove(layer, "weight") ends it layer by layer.
    Unlike with torch's own functions the model can be deep-copied, before and after a forward pass.
    Returns the model. Raises ConfigError or ModelError for masks that do not fit the model.
    """
    found = masks_of(model) if masks is None else masks
    for module, weight, mask in [(*_owner(plain(model), name, mask), mask) for name, mask in found.items()]:
        parameter = getattr(module, weight)
        prune.custom_from_mask(module, weight, mask.to(parameter))
        _detach(weight, module)
        module.register_forward_hook(partial(_detach, weight))
    return model


def _detach(weight: str, module: nn.Module, *_: object) -> None:
    """Forget how the masked weight came about: the pass that used it knows, and copy.deepcopy refuses to copy it."""
    if weight not in module._parameters:  # it is one again after prune.remove
        setattr(module, weight, getattr(module, weight).detach())


@gated
def hold_zeros(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> "ZeroHold":
    """Set the weights outside the masks to zero and hold them there while any torch optimiser works on the model.

        with feta.hold_zeros(model):
            train(model)

    model: the model that is trained; a deep copy needs a hold of its own.
    masks: by layer name, true where a weight may live; by default the zeros that the model has.

    Gradients of dead weights are zeroed as they arrive, so that norms and averages over processes see the sparse
    model alone. After each step dead weights are set to zero, because older momentum moves them without gradients.
    Returns a ZeroHold, which `remove` or the end of its `with` block ends. Raises ConfigError or ModelError for masks
    that do not fit the model.
    """
    return ZeroHold(plain(model), masks_of(model) if masks is None else masks)


# Torch calls its hooks while another thread may add one, which it does not stand: it gets this one, once and for all.
_LIVE: "weakref.WeakSet[ZeroHold]" = weakref.WeakSet()
_LIVE_LOCK = threading.Lock()


def _after_step(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    with _LIVE_LOCK:
        holds = list(_LIVE)
    for hold in holds:
        hold.after_step(optimiser)


register_optimizer_step_post_hook(_after_step)


class ZeroHold:
    """Zeros that are held, see `hold_zeros`."""

    def __init__(self, model: nn.Module, masks: Mapping[str, Tensor], gradients: bool = False) -> None:
        """gradients: whether those of dead weights are left, for masks that change."""
        self.masks = dict(masks)
        self._layers = {name: _owner(model, name, mask) for name, mask in self.masks.items()}
        self._factors: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        for name, mask in self.masks.items():
            weight = self.weight(name)
            with torch.no_grad():
                weight.masked_fill_(~mask.to(weight.device), 0)  # no product: what is not finite must go too
            if weight.requires_grad and not gradients:
                self._handles.append(weight.register_hook(partial(self._masked, name)))
        with _LIVE_LOCK:
            _LIVE.add(self)

    @torch.no_grad()
    def apply_(self) -> None:
        """Set the dead weights to zero."""
        for name in self._layers:
            weight = self.weight(name)
            weight.mul_(self._factor(name, weight))

    @torch.no_grad()
    def change_(self, masks: Mapping[str, Tensor]) -> None:
        """Hold other zeros from now on; steps that are recorded hold them too."""
        for name, mask in masks.items():
            weight = self.weight(name)
            self.masks[name] = mask
            if name in self._factors:
                self._factors[name].copy_(mask)
            weight.mul_(self._factor(name, weight))

    def remove(self) -> None:
        """Let go; the zeros stay until something moves them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        with _LIVE_LOCK:
            _LIVE.discard(self)

    def after_step(self, optimiser: torch.optim.Optimizer) -> None:
        """Set the dead weights to zero, if the optimiser works on them."""
        held = {id(self.weight(name)) for name in self._layers}
        if any(id(p) in held for group in optimiser.param_groups for p in group["params"]):
            self.apply_()

    def __enter__(self) -> "ZeroHold":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def weight(self, name: str) -> nn.Parameter:
        # Looked up each time: load_state_dict(assign=True) puts another parameter into the layer.
        module, weight = self._layers[name]
        return getattr(module, weight)  # type: ignore[no-any-return]

    def _factor(self, name: str, like: Tensor) -> Tensor:
        """Ones and zeros: a product costs an eighth of a fill on a CPU."""
        factor = self._factors.get(name)
        if factor is None or factor.device != like.device or factor.dtype != like.dtype:
            factor = self._factors[name] = self.masks[name].to(like.device, like.dtype)
        return factor

    def _masked(self, name: str, gradient: Tensor) -> Tensor:
        return gradient * self._factor(name, gradient)


def plain(model: nn.Module) -> nn.Module:
    """The model itself, out of the wrapper that trains it in several processes."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _owner(model: nn.Module, name: str, mask: Tensor) -> tuple[nn.Module, str]:
    """The module that holds a mask's weight, and the weight's name, once the two are known to fit."""
    try:
        module, key, _ = owner_of(model, name)
    except AttributeError:
        raise ConfigError(f"masks must name layers of the model, got '{name}'") from None
    weight = module._parameters.get(key)
    if weight is None:
        raise ModelError(f"layer '{name}' must hold its weight as a plain parameter, got {type(module).__name__}")
    if mask.dtype != torch.bool or mask.shape != weight.shape:
        raise ConfigError(
            f"masks['{name}'] must be bool of shape {tuple(weight.shape)}, got {mask.dtype} {tuple(mask.shape)}"
        )
    return module, key
