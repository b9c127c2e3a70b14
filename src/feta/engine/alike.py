"""What the processes of a job are given: the same model, and data that is the same in all or a share in each."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from feta.calibration.inputs import Batch, Inputs
from feta.calibration.recording import tensors_in
from feta.engine.shards import WHOLE, Shards
from feta.engine.spread import CURE, WAYS
from feta.errors import ConfigError, ModelError
from feta.ranks import Ranks


def is_sharded(data: Any, said: str) -> bool:
    """Whether each process has its own samples: as the user says, or because the loader's sampler deals them out."""
    if said != "auto":
        return said == "sharded"
    sampler = data.sampler if isinstance(data, DataLoader) else None
    return isinstance(sampler or getattr(data, "batch_sampler", None), DistributedSampler)


def everyone(inputs: Inputs, ranks: Ranks) -> Iterator[Batch]:
    """The batches of all processes, in turn: the first of each, the second of each, …"""
    source = iter(inputs)
    while True:
        found = ranks.objects(next(source, None))
        if all(batch is None for batch in found):
            return
        yield from (batch for batch in found if batch is not None)


def check_whole(model: nn.Module) -> None:
    """Raise ModelError for a model whose weights are spread over processes in a way that cannot be undone here."""
    wrapped = next((name for name, module in model.named_modules() if hasattr(module, "_fsdp_wrapped_module")), None)
    if wrapped is not None:
        raise ModelError(f"{WAYS}, got '{wrapped or 'model'}' in FullyShardedDataParallel; {CURE}")


def check_same_model(model: nn.Module, ranks: Ranks, shards: Shards = WHOLE) -> None:
    """Raise ModelError unless all processes have the same weights; those that are gathered are the same anyway."""
    if ranks.many:
        here = [tensor for tensor in tensors_in(model.state_dict(keep_vars=True)) if shards.part(tensor) is None]
        _check_same(digest(here), ranks, ModelError, "model", "seed it alike, or load the same file")


def check_same_data(inputs: Inputs, ranks: Ranks) -> None:
    """Raise ConfigError unless all processes have the same number of samples, and the same first batch."""
    if ranks.many:
        cure = "give all of it to each process in the same order, or each its own with feta.Settings(data='sharded')"
        _check_same(f"{inputs.count} {digest(next(iter(inputs)))}", ranks, ConfigError, "data", cure)


def _check_same(mine: str, ranks: Ranks, error: type[Exception], what: str, cure: str) -> None:
    found = ranks.objects(mine)
    for rank, other in enumerate(found):
        if other != found[0]:
            raise error(f"{what} must be the same in all processes, got another in process {rank} than in 0; {cure}")


def digest(item: Any, shards: Shards = WHOLE) -> str:
    """A checksum of all tensors in an item; what is spread is gathered one tensor at a time."""
    found = hashlib.sha256()
    for tensor in tensors_in(item):
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        with shards.gathered([tensor]):
            found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""
