"""What waits between passes: on the device while there is room, then in the CPU's memory, then in a file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feta.calibration.recording import tensors_in
from feta.calibration.spill import Spill, mapped


@dataclass(frozen=True)
class Room:
    """How many bytes may wait on the device, and as many again in the CPU's memory where that is another place."""

    device: torch.device
    bytes: float
    values: int = 2**23  # entries of a layer's inputs in one chunk of rows: 32 MiB of float32

    def hold(self, items: Iterable[Any]) -> "Held":
        """Nested tuples, lists and mappings of tensors, read once and given out as often as asked for."""
        return Held(items, self)


class Held:
    """Items that wait; given out on the device."""

    def __init__(self, items: Iterable[Any], room: Room) -> None:
        self.device, self.near, self.bytes = room.device, [], 0
        near, far = room.bytes, room.bytes if room.device.type != "cpu" else 0
        source = iter(items)
        for item in source:
            size = size_in_bytes(item)
            self.bytes += size
            if size <= near:
                near -= size
                self.near.append(item)
            elif size <= far:
                far, near = far - size, 0
                self.near.append(mapped(item, Tensor.cpu))
            else:
                self.spilled = Spill(self._counted(item, source))
                return
        self.spilled = Spill(())

    def __iter__(self) -> Iterator[Any]:
        for item in self.near:
            yield mapped(item, lambda tensor: tensor.to(self.device))
        for item in self.spilled:
            yield mapped(item, lambda tensor: tensor.to(self.device))

    def _counted(self, first: Any, others: Iterator[Any]) -> Iterator[Any]:
        yield first
        for item in others:
            self.bytes += size_in_bytes(item)
            yield item


def size_in_bytes(item: Any) -> int:
    """Of the tensors in an item; one that is there twice is counted once."""
    found = {id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors_in(item)}
    return sum(found.values())
