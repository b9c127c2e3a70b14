"""The processes that train one model together: what they must agree on is summed over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Ranks:
    """The processes of a DistributedDataParallel model, or this one alone."""

    device: torch.device
    group: Any = None
    count: int = 1
    rank: int = 0

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> Ranks:
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
        return [float(value) for value in total.tolist()]

    def any(self, flag: bool) -> bool:
        """Whether it is so in one of the processes."""
        return self.sum([float(flag)])[0] > 0

    def same(self, value: float) -> bool:
        """Whether all have this value."""
        first, second = self.sum([value, value * value])
        return abs(second * self.count - first * first) < 0.5
