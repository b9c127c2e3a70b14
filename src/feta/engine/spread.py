"""A model whose weights are spread over the processes of a job, by torch's fully_shard (FSDP2) or tensor parallelism.

It is pruned as a plain network. Where each process has room for that network twice, its tensors are gathered one at a
time into a copy in the CPU's memory; otherwise block by block, each process holding its parts of both networks and
the block at hand (engine.shards). The result is spread like the model.
"""

import copy
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.chain import alike, outputs_in
from feta.calibration.copies import shell
from feta.calibration.inputs import Batch
from feta.calibration.model import run_on
from feta.calibration.spill import mapped
from feta.engine.modules import is_unit, settings_of, unhook, unit_as_it_was
from feta.engine.shards import Shards, cut, whole_of
from feta.errors import ModelError, one_line
from feta.ranks import RankError, Ranks

CURE = (
    "give the model as it was before that: samples are shared out all the same, and a model that does not fit on the "
    "GPU stays on the CPU with device='cuda', one block at a time on the GPU"
)
WAYS = "model must be whole in every process, or spread by one of torch's fully_shard and parallelize_module"
SHARE = 0.5  # of the free memory that the two networks of all processes of a machine may take


def is_spread(model: nn.Module) -> bool:
    """Whether some of a model's weights are parts."""
    return any(map(is_unit, model.modules())) or any(map(_is_part, _tensors(model)))


@dataclass(frozen=True)
class Spread:
    """A model spread by fully_shard or by tensor parallelism."""

    model: nn.Module

    def __post_init__(self) -> None:
        for _, unit in self._units():
            unit.reshard()  # after a forward pass some units hold whole weights
        own = {id(tensor) for _, unit in self._units() for tensor in unit.parameters()}
        parts: list[tuple[str, Any]] = [(name, p) for name, p in self.model.named_parameters() if _is_part(p)]
        for name, tensor in parts:
            if (own and id(tensor) not in own) or sum(not where.is_replicate() for where in tensor.placements) > 1:
                raise ModelError(
                    f"{WAYS}, got '{name}' spread by both, or over two dimensions ({tensor.placements}); {CURE}"
                )

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return next(self.model.parameters()).device

    def fits(self, limit: float | None, ranks: Ranks) -> bool:
        """Whether every process has room for the whole network twice; the answer is the same in all of them.

        limit: bytes that the user gives a process; None: half of the machine's free memory, shared by its processes.
        """
        size = 2 * sum(tensor.numel() * tensor.element_size() for tensor in _tensors(self.model))
        if limit is not None:
            return size <= limit
        found = ranks.objects((socket.gethostname(), free_memory()))
        hosts = [host for host, _ in found]
        return all(size * hosts.count(host) <= SHARE * free for host, free in found)

    def whole(self) -> nn.Module:
        """A plain copy in the CPU's memory, the same in every process."""
        memo = {id(p): _parameter(_here(p).cpu(), p) for p in self.model.parameters()}
        return self._plain(memo).cpu()

    def skeleton(self, shards: Shards) -> nn.Module:
        """A plain copy whose weights are gathered where they are needed."""
        memo = {id(p): shards.add(p) if _is_part(p) else _parameter(_here(p), p) for p in self.model.parameters()}
        return self._plain(memo)

    def _plain(self, memo: dict[int, Any]) -> nn.Module:
        """A copy of the model as it was before it was spread, around other parameters."""
        memo |= {id(buffer): _here(buffer) for buffer in self.model.buffers() if _is_part(buffer)}
        for _, unit in reversed(list(self._units())):  # children first: a unit refuses to be copied
            memo[id(unit)] = unit_as_it_was(unit, memo)
        found = copy.deepcopy(self.model, memo)
        for module in found.modules():
            unhook(vars(module))
        return found

    def like(self, plain: nn.Module, shards: Shards) -> nn.Module:
        """A plain model of the same structure, spread like this one; it is changed."""
        given: dict[str, Any] = dict(_named(self.model))
        found = dict[int, Any]()
        for name, tensor in _named(plain):
            if id(tensor) not in found:
                found[id(tensor)] = _like(tensor, given[name], shards.part(tensor))
        named = {name: found[id(tensor)] for name, tensor in _named(plain)}
        if not list(self._units()):
            meshes = {id(part.device_mesh): part.device_mesh for part in given.values() if _is_part(part)}
            return copy.deepcopy(self.model, meshes | {id(given[name]): tensor for name, tensor in named.items()})
        self._shard(plain, {name: part for name, part in given.items() if _is_part(part)})
        _put(plain, named)
        return plain

    def _shard(self, plain: nn.Module, parts: dict[str, Any]) -> None:
        """fully_shard, called for the same modules in the same way, on weights without values."""
        from torch.distributed.fsdp import fully_shard

        empty = {id(p): _parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"), p) for p in parts.values()}
        _put(plain, {name: empty[id(part)] for name, part in parts.items()})
        cuts = ((part, [where for where in part.placements if where.is_shard()]) for part in parts.values())
        along = {id(empty[id(part)]): where[0] if where else None for part, where in cuts}
        kept = {tensor for tensor in plain.parameters() if id(tensor) not in along}
        for name, unit in reversed(list(self._units())):
            how = settings_of(unit) | {"shard_placement_fn": lambda tensor: along[id(tensor)], "ignored_params": kept}
            fully_shard(plain.get_submodule(name), **how)

    @torch.no_grad()
    def check(self, plain: nn.Module, batch: Batch) -> None:
        """Raise ModelError if a model spread by tensor parallelism does something else with whole weights."""
        if list(self._units()):
            return
        try:
            expected = outputs_in(run_on(shell(self.model), mapped(batch, Tensor.clone)))
        except Exception:  # the data is at fault, which tracing says better
            return
        why = "others on the first two samples"
        try:
            found = outputs_in(run_on(plain, mapped(batch, Tensor.clone)))
        except RankError:
            raise
        except Exception as error:
            found, why = [], f"an error ({one_line(error)})"
        if not alike(found, [_whole(tensor) for tensor in expected]):
            raise ModelError(
                f"a model spread by tensor parallelism must give the same outputs with whole weights, got {why}; "
                "does its own code count on parts, such as heads divided by the number of processes? Give the model "
                "as it was before parallelize_module, or read such sizes off the tensors"
            )

    def _units(self) -> Iterator[tuple[str, Any]]:
        return ((name, module) for name, module in self.model.named_modules() if is_unit(module))


def free_memory() -> float:
    """Bytes that a process could take on this machine; infinite where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _put(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        parent, _, own = name.rpartition(".")
        module = model.get_submodule(parent)
        (module._parameters if own in module._parameters else module._buffers)[own] = tensor  # type: ignore[assignment]


def _is_part(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def _whole(tensor: Any) -> Tensor:
    return whole_of(tensor) if _is_part(tensor) else tensor


def _here(tensor: Any) -> Tensor:
    """A whole copy of a tensor."""
    return _whole(tensor).detach().clone()


def _parameter(values: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(values, like.requires_grad)


def _like(tensor: Tensor, given: Any, part: Any) -> Any:
    """A tensor of a plain model, spread and placed like the given one; part: this process's, where it is known."""
    from torch.distributed.tensor import DTensor

    if not _is_part(given):
        tensor.data = tensor.data.to(given.device)
        return tensor
    local = cut(tensor, given).clone() if part is None else part.to_local()
    own = local.detach(), given.device_mesh, given.placements
    found: Any = DTensor.from_local(*own, run_check=False, shape=given.shape, stride=given.stride())
    return _parameter(found, given) if isinstance(given, nn.Parameter) else found
