"""What torch's fully_shard and parallelize_module do to modules: read off, and left out of copies."""

import copy
from typing import Any

import torch.distributed as dist
from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
LOADING = ("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
PRIVATE = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")  # fully_shard's marks


def is_unit(module: nn.Module) -> bool:
    if not dist.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def unit_as_it_was(unit: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A unit as it was before fully_shard made one of it."""
    kind: Any = type(unit).__mro__[2]  # behind the class that was made for it, and FSDPModule
    found = kind.__new__(kind)
    state = {name: value for name, value in vars(unit).items() if not name.startswith(PRIVATE)}
    unhook(state)
    found.__dict__.update(copy.deepcopy(state, memo))
    return found  # type: ignore[no-any-return]


def unhook(state: dict[str, Any]) -> None:
    """Leave out the hooks that torch.distributed has put on a module."""
    for name in (*HOOKS, *LOADING):
        state[name] = type(state[name])((key, hook) for key, hook in state[name].items() if not _of_torch(hook))


def _of_torch(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)  # of a partial
    names = (getattr(hook, "__module__", None), type(getattr(hook, "__self__", None)).__module__)
    return any(str(name).startswith("torch.distributed") for name in names)


def settings_of(unit: Any) -> dict[str, Any]:
    """How fully_shard was called for a unit: its mesh, and as much else as can be read off it."""
    state = unit._get_fsdp_state()
    group = (getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)])[0]
    if group is None:  # a unit whose weights are all its children's
        return {"mesh": next(p.device_mesh for p in unit.parameters() if hasattr(p, "device_mesh"))}
    return {
        "mesh": group.mesh_info.mesh,
        "reshard_after_forward": group.post_forward_mesh_info is not None,
        "mp_policy": group.mp_policy,
        "offload_policy": group.offload_policy,
    }
