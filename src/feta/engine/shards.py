"""Weights that are spread over the processes of a job, and come together where they are worked on.

Each process holds its parts of both networks. The parameters that modules are made of keep their shape and type, but
hold one NaN for all of their entries, until they are gathered; then they hold what all processes have of them. What
was written to a parameter of the pruned network is cut into parts again, and every process keeps its own.

Every process gathers the same parameters in the same order: around the segments of a walk, or, where all run the same
batch, around single operators. It never happens inside of runs on batches of their own.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from feta.calibration.copies import copied
from feta.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Shards:
    """The parameters of a run's networks that are elsewhere as a rule; none: all are here."""

    ranks: Ranks = ALONE
    _parts: dict[int, tuple[nn.Parameter, Any]] = field(default_factory=dict)  # by id, with this process's part
    _kept: set[int] = field(default_factory=set)  # those whose new values are kept: the pruned network's
    _here: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: Any, kept: bool = False) -> nn.Parameter:
        """A parameter that stands for a tensor of which this process has a part."""
        found = nn.Parameter(_away(part), part.requires_grad)
        self._parts[id(found)] = found, part
        if kept:
            self._kept.add(id(found))
        return found

    def copied(self, model: nn.Module) -> nn.Module:
        """A copy of a network, whose parts are copies too: what is written to them is kept."""
        own = [tensor for tensor in model.parameters() if id(tensor) in self._parts]
        return copied(model, {id(tensor): self.add(self.part(tensor).detach().clone(), True) for tensor in own})

    def part(self, tensor: Tensor) -> Any:
        """This process's part of a parameter, a DTensor; None of one that is here."""
        return self._parts[id(tensor)][1] if id(tensor) in self._parts else None

    def held(self, tensor: Tensor) -> Tensor:
        """The values of a parameter as this process has them: all, or its part."""
        part = self.part(tensor)
        return tensor.detach() if part is None else part.detach()

    @contextmanager
    def gathered(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Inside, these tensors are whole, in every process; what is written to the pruned network's is kept."""
        wanted = {id(tensor) for tensor in tensors} - self._here
        own = [number for number in self._parts if number in wanted]  # in the same order in every process
        try:
            with self._together() if own else nullcontext():
                for number in own:
                    parameter, part = self._parts[number]
                    parameter.data = whole_of(part)
                    self._here.add(number)
            yield
        finally:
            for number in self._here.intersection(own):
                self._leave(number)

    def on_use(self) -> AbstractContextManager[Any]:
        """Inside, every operator finds its parameters whole while it runs: all processes must run the same."""
        return _OnUse(self) if self else nullcontext()

    def _leave(self, number: int) -> None:
        parameter, part = self._parts[number]
        if number in self._kept:
            with torch.no_grad():
                part.to_local().copy_(cut(parameter, part))
        parameter.data = _away(part)
        self._here.remove(number)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Inside, all processes gather the same; one that has failed is noticed before."""
        with self.ranks.telling():
            self.ranks.any(False)  # what follows has no way to look for a failure
            yield

    def wanted(self, tensor: Tensor) -> Tensor:
        """A tensor, whole if it is one of ours."""
        if id(tensor) not in self._parts or id(tensor) in self._here:
            return tensor
        with self._together():
            return whole_of(self._parts[id(tensor)][1])


class _OnUse(TorchDispatchMode):
    """Gathers what an operator reads, and forgets it."""

    def __init__(self, shards: Shards) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shards = shards

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self.shards.wanted, (args, kwargs or {}))
        return func(*args, **kwargs)


WHOLE = Shards()
PAUSE = 1e-3  # seconds in which threads of gloo free what they gathered: torch waits for the next one holding Python


@torch.no_grad()
def whole_of(part: Any) -> Tensor:
    """A tensor out of the parts that all processes of its mesh have, where the part is."""
    from torch.distributed.tensor import DTensor

    local, mesh = part.detach().to_local(), part.device_mesh
    there = local.to(mesh.device_type)  # a part may be kept in the CPU's memory beside the GPUs of its mesh
    shape = {"shape": part.shape, "stride": part.stride()}
    whole = DTensor.from_local(there, mesh, part.placements, run_check=False, **shape).full_tensor()
    if mesh.device_type == "cpu":
        time.sleep(PAUSE)
    return whole.to(local.device)


@torch.no_grad()
def cut(whole: Tensor, like: Any) -> Tensor:
    """This process's part of a tensor that all have, cut like another."""
    from torch.distributed.tensor import distribute_tensor

    parts = distribute_tensor(whole.detach(), like.device_mesh, like.placements, src_data_rank=None)
    return parts.to_local().to(like.device)


def _away(part: Any) -> Tensor:
    """One entry seen as all of them: who reads it by mistake reads NaN."""
    one = torch.full((), float("nan") if part.is_floating_point() else 0, dtype=part.dtype, device=part.device)
    return one.expand(part.shape)
