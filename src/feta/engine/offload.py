"""A model that does not fit on the device: one segment at a time is copied there, pruned, and written back."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from feta.calibration.chain import Chain, Segment

SHARE = 0.4  # of the free memory that a model may take: there are two of them


def fits(model: nn.Module, device: torch.device) -> bool:
    """Whether a device has room for the model and its pruned copy, and for the work on them."""
    if device.type != "cuda":
        return True
    size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(model))
    free: int = torch.cuda.mem_get_info(device)[0]
    return size <= SHARE * free


@contextmanager
def brought(models: Sequence[nn.Module], chain: Chain, segment: Segment, device: torch.device) -> Iterator[None]:
    """Inside, the blocks of a segment are on the device; what happens to their weights there is kept."""
    places = []
    for model in models:
        for name in chain.blocks[max(segment.start, 0) : segment.stop]:
            parent, _, child = name.rpartition(".")
            holder, block = model.get_submodule(parent), model.get_submodule(name)
            there = copy.deepcopy(block).to(device)
            setattr(holder, child, there)
            places.append((holder, child, block, there))
    try:
        yield
    finally:
        for holder, child, block, there in places:
            setattr(holder, child, block)
            with torch.no_grad():
                for here, other in zip(_tensors(block), _tensors(there), strict=True):
                    here.copy_(other)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
