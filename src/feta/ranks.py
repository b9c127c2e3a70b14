"""The processes of one job (torch.distributed): sums over them, and what becomes of all when one fails.

Every process makes the same calls in the same order. One that raises an error leaves its reason with the others, who
look for it while they wait; one that is killed is missed by its connections (gloo) or by torchrun.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from feta.errors import ConfigError, FetaError

LOOK = 0.2  # seconds between two looks for the failure of another process
ARRIVE = 300.0  # seconds in which all processes must have begun
MOST_DIMS = 6  # of a tensor that is summed
REASON = 4000  # characters at the most


class RankError(FetaError):
    """Another process of the job has failed: its reason."""


@dataclass(frozen=True)
class Ranks:
    """The processes that work together, or this one alone."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a constant
    group: Any = None
    count: int = 1
    rank: int = 0
    run: str = ""  # the name under which failures are told; empty: they are not

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> "Ranks":
        """The processes of a DistributedDataParallel model."""
        if not isinstance(model, DistributedDataParallel):
            return cls(device)
        group = model.process_group
        return cls(device, group, dist.get_world_size(group), dist.get_rank(group))

    @classmethod
    def here(cls, device: torch.device) -> "Ranks":
        """All processes of the job, if this one is in one."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return cls(device)
        return cls(device, dist.group.WORLD, dist.get_world_size(), dist.get_rank())

    @property
    def many(self) -> bool:
        return self.group is not None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    @contextmanager
    def working(self) -> Iterator["Ranks"]:
        """Inside, an error of one process ends all of them, with its reason."""
        if not self.many:
            yield self
            return
        store: Any = dist.distributed_c10d._get_default_store()
        number = store.add(f"feta/begun/{self.rank}", 1)  # all have begun as often
        ranks = replace(self, run=f"feta/run/{number}")
        store.set(f"{ranks.run}/{self.rank}", "here")
        ranks._meet(store)
        try:
            yield ranks
        except RankError:
            raise
        except BaseException as error:
            reason = f"process {self.rank} of {self.count}: {error or type(error).__name__}"
            store.set(f"{ranks.run}/failed", reason[:REASON])
            raise

    def _meet(self, store: Any) -> None:
        """Wait for all processes to begin."""
        try:
            store.wait([f"{self.run}/{rank}" for rank in range(self.count)], timedelta(seconds=ARRIVE))
        except RuntimeError as error:
            here = sum(store.check([f"{self.run}/{rank}"]) for rank in range(self.count))
            raise ConfigError(
                f"all {self.count} processes of the job must call feta.prune, got {here} in {ARRIVE:g} s; call it in "
                "each, or give feta.Settings(data='alone') to prune in this one by itself"
            ) from error

    def add_(self, tensor: Tensor) -> Tensor:
        """A tensor that every process has, summed over them, in place."""
        if self.many:
            self._exchange(tensor, lambda there: dist.all_reduce(there, group=self.group, async_op=True))
        return tensor

    def total(self, tensor: Tensor | None) -> Tensor | None:
        """The sum of a tensor over the processes that have one; None where none of them has."""
        if not self.many:
            return tensor
        shape = torch.zeros(MOST_DIMS + 1, dtype=torch.int64)
        if tensor is not None:
            shape[: 1 + tensor.ndim] = torch.tensor([tensor.ndim + 1, *tensor.shape])
        most = dist.ReduceOp.MAX
        self._exchange(shape, lambda there: dist.all_reduce(there, op=most, group=self.group, async_op=True))
        if not shape[0]:
            return None
        if tensor is None:
            tensor = torch.zeros(shape[1 : shape[0]].tolist(), dtype=torch.float64, device=self.device)
        return self.add_(tensor.double())

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes."""
        if not self.many:
            return list(values)
        return list(self.add_(torch.tensor(values, dtype=torch.float64)).tolist())

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in one of the processes."""
        return self.sum([float(flag)])[0] > 0

    def most(self, value: float) -> float:
        """The largest of the processes' values."""
        return max(self.objects(value)) if self.many else value

    def objects(self, value: Any) -> list[Any]:
        """What every process gives, in order."""
        if not self.many:
            return [value]
        found: list[Any] = [None] * self.count
        with self.telling():
            self.any(False)  # here a failure of another is seen; what follows has no way to look for it
            dist.all_gather_object(found, value, group=self.group)
        return found

    def exactly(self, values: Iterable[float]) -> float:
        """The sum of all values of all processes, rounded once: no order changes it."""
        return math.fsum(value for part in self.objects(list(values)) for value in part)

    def in_turn(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The sum of tensors that belong to shared-out batches, in the order of the batches; None of none."""
        parts = self.objects([tensor.cpu() for tensor in tensors])
        ordered = [tensor for turn in zip_longest(*parts) for tensor in turn if tensor is not None]
        where = tensors[0].device if tensors else self.device
        return torch.stack(ordered).sum(0).to(where) if ordered else None

    def earliest(self, number: int, value: Any) -> Any:
        """What the process has that is the first to have something: by its number, then by rank; None of nothing."""
        found = [
            (at, rank, item) for rank, (at, item) in enumerate(self.objects((number, value))) if item is not None
        ]
        return min(found, key=lambda each: each[:2])[2] if found else None

    def gathered(self, tensor: Tensor) -> Tensor:
        """The rows of all processes, one process after the other."""
        if not self.many:
            return tensor
        counts = torch.zeros(self.count, dtype=torch.int64)
        counts[self.rank] = len(tensor)
        counts = self.add_(counts)
        starts = [0, *counts.cumsum(0).tolist()]
        whole = tensor.new_zeros(starts[-1], *tensor.shape[1:])
        whole[starts[self.rank] : starts[self.rank + 1]] = tensor
        return self.add_(whole)  # all others have zeros there: exact, and of any dtype that adds

    def same_(self, tensors: Iterable[Tensor]) -> None:
        """The first process's values in all of them, in place: equal to the last bit, whatever the machines."""
        if self.many:
            for tensor in tensors:
                self._exchange(tensor, lambda there: dist.broadcast(there, 0, group=self.group, async_op=True))

    def _exchange(self, tensor: Tensor, start: Callable[[Tensor], Any]) -> None:
        """Start an exchange of a tensor, wait for it, and put what came into the tensor."""
        there = tensor.detach()
        if dist.get_backend(self.group) == "nccl" and there.device.type != "cuda":
            there = there.to(self.device if self.device.type == "cuda" else "cuda")
        there = there.contiguous()
        with self.telling():
            self._wait(work := start(there))
        LAST[:] = [work]
        if there.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(there)

    def _wait(self, work: Any) -> None:
        pause, looked = 2e-5, time.monotonic()
        while not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
            if self.run and time.monotonic() - looked > LOOK:
                self._look()
                looked = time.monotonic()
        work.wait()

    def _look(self) -> None:
        """Raise RankError if another process has failed."""
        store: Any = dist.distributed_c10d._get_default_store()
        try:
            reason = store.get(f"{self.run}/failed").decode() if store.check([f"{self.run}/failed"]) else None
        except RuntimeError as error:  # the process that keeps the store is gone
            raise RankError("the first process of the job is gone: it was killed, or ran out of memory") from error
        if reason is not None:
            raise RankError(reason)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A broken connection, told as what it means."""
        try:
            yield
        except RuntimeError as error:
            if self.run:
                time.sleep(LOOK)  # the reason may be on its way
                self._look()
            lost = str(error).splitlines()[0].rpartition("] ")[2].split(". ")[0] if str(error) else "no reason given"
            raise RankError(f"another process of the job is gone: killed, or out of memory ({lost})") from error


# The last exchange is kept until the next. Dropped here first, it would be freed by the thread of gloo that worked on
# it, which may wait for Python under a lock, while torch waits for the next exchange without letting go of Python.
LAST: list[Any] = []
ALONE = Ranks()
