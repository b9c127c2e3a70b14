"""Several processes that train one model together by DistributedDataParallel, and what they must agree on."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feta.calibration.model import device_of
from feta.errors import ConfigError


@dataclass(frozen=True)
class Ranks:
    """The processes of a DistributedDataParallel model, or this one alone."""

    device: torch.device
    group: Any = None
    count: int = 1
    rank: int = 0

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> "Ranks":
        if not isinstance(model, DistributedDataParallel):
            return cls(device)
        group = model.process_group
        return cls(device, group, dist.get_world_size(group), dist.get_rank(group))

    @property
    def many(self) -> bool:
        return self.group is not None

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes."""
        if not self.many:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self.group)
        return list(total.tolist())

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in one of the processes."""
        return self.sum([float(flag)])[0] > 0


def copy_of(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of the model on the device, in a distributed wrapper of the same settings if it has one."""
    if not isinstance(model, DistributedDataParallel):
        return copy.deepcopy(model).to(device)
    if device != device_of(model):
        raise ConfigError(f"device must be the wrapped model's, got {device} for {device_of(model)}")
    # Torch warns about this argument whenever it is given, whatever its value.
    buffers: dict[str, Any] = {} if model.broadcast_buffers else {"broadcast_buffers": False}
    wrapper = DistributedDataParallel(
        copy.deepcopy(model.module),
        device_ids=model.device_ids,
        process_group=model.process_group,
        **buffers,
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
    )
    wrapper.training = model.training
    return wrapper
