"""A model whose weights are spread over the processes of a job by torch's fully_shard (FSDP2).

Its tensors are gathered one at a time, into a plain copy in the CPU's memory, which is pruned like any other: where
the shards are on GPUs, there, block by block unless a GPU has room for all. The result is spread like the model, one
unit after the other.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from feta.errors import ModelError

CURE = (
    "give the model as it was before that: samples are shared out all the same, and a model that does not fit on the "
    "GPU stays on the CPU with device='cuda', one block at a time on the GPU"
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
LOADING = ("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
PRIVATE = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")  # fully_shard's marks


def is_spread(model: nn.Module) -> bool:
    """Whether some of a model's weights are shards."""
    return any(hasattr(tensor, "full_tensor") for tensor in model.parameters())


@dataclass(frozen=True)
class Spread:
    """A model spread by fully_shard."""

    model: nn.Module

    def __post_init__(self) -> None:
        units = [module for _, module in self._units()]
        own = {id(tensor) for unit in units for tensor in unit.parameters()}
        tensors: list[tuple[str, Any]] = list(self.model.named_parameters())
        for name, tensor in tensors:
            if hasattr(tensor, "full_tensor") and (id(tensor) not in own or not _by_rows(tensor)):
                raise ModelError(
                    f"model must be whole in every process, or spread by torch's fully_shard, got '{name}' spread by "
                    f"tensor parallelism ({tensor.placements}); {CURE}"
                )

    @property
    def device(self) -> torch.device:
        """Where the shards are."""
        return next(self.model.parameters()).device

    def whole(self) -> nn.Module:
        """A plain copy in the CPU's memory, the same in every process."""
        memo: dict[int, Any] = {}
        for tensor in self.model.parameters():
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            memo[id(tensor)] = nn.Parameter(full.detach().cpu().clone(), tensor.requires_grad)
        for module in reversed(list(self.model.modules())):  # children first: a unit refuses to be copied
            if _is_unit(module):
                memo[id(module)] = _plain(module, memo)
        return copy.deepcopy(self.model, memo).cpu()

    def like(self, plain: nn.Module) -> nn.Module:
        """A plain model of the same structure, spread like this one; it is changed."""
        from torch.distributed.fsdp import fully_shard

        for name, unit in reversed(list(self._units())):
            fully_shard(plain.get_submodule(name), **_settings(unit))
        return plain

    def _units(self) -> Iterator[tuple[str, nn.Module]]:
        return ((name, module) for name, module in self.model.named_modules() if _is_unit(module))


def _is_unit(module: nn.Module) -> bool:
    if not dist.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _by_rows(tensor: Any) -> bool:
    """Whether a tensor is cut along one dimension and repeated along all others, as fully_shard does."""
    return sum(not placement.is_replicate() for placement in tensor.placements) <= 1


def _plain(unit: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A unit as it was before fully_shard made one of it."""
    kind: Any = type(unit).__mro__[2]  # behind the class that was made for it, and FSDPModule
    found = kind.__new__(kind)
    state = {name: value for name, value in vars(unit).items() if not name.startswith(PRIVATE)}
    for name in (*HOOKS, *LOADING):
        own = {key: hook for key, hook in state[name].items() if not _of_torch(hook)}
        state[name] = type(state[name])(own)
    found.__dict__.update(copy.deepcopy(state, memo))
    return found  # type: ignore[no-any-return]


def _of_torch(hook: Any) -> bool:
    names = (getattr(hook, "__module__", None), type(getattr(hook, "__self__", None)).__module__)
    return any(str(name).startswith("torch.distributed") for name in names)


def _settings(unit: Any) -> dict[str, Any]:
    """How fully_shard was called for a unit: its mesh, and as much else as can be read off it."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    group = groups[0]
    if group is None:  # a unit whose weights are all its children's
        return {"mesh": next(p.device_mesh for p in unit.parameters() if hasattr(p, "device_mesh"))}
    after = group.post_forward_mesh_info is not None
    return {
        "mesh": group.mesh_info.mesh,
        "reshard_after_forward": after,
        "mp_policy": group.mp_policy,
        "offload_policy": group.offload_policy,
    }
