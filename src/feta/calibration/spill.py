"""Tensors kept in one memory-mapped temporary file: written once, read again in any number of passes.

Memory stays that of one batch; the pages live in the operating system's cache while it has room.
"""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from feta.errors import FileError

ALIGNMENT = 16  # of every tensor: that of the largest dtype


class _Entry(NamedTuple):
    offset: int  # in bytes
    shape: tuple[int, ...]
    dtype: torch.dtype


class Spill:
    """Tensors, or tuples, lists or dicts of tensors, on disk. The file has no name and is gone with the object."""

    def __init__(self, items: Iterable[Any]) -> None:
        # Unbuffered: a full disk shows in the write, not when the file is closed.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the object
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._items = [mapped(item, self._write) for item in items]

    def __iter__(self) -> Iterator[Any]:
        return (mapped(item, self._read) for item in self._items)

    def _write(self, tensor: Tensor) -> _Entry:
        data = tensor.detach().cpu().contiguous()
        raw = data.reshape(-1).view(torch.uint8).numpy() if data.numel() else np.empty(0, np.uint8)
        self._put(memoryview(bytes(-self._end % ALIGNMENT)))
        entry = _Entry(self._end, tuple(data.shape), data.dtype)
        self._put(raw.data)
        return entry

    def _put(self, left: memoryview) -> None:
        self._end += len(left)
        try:
            while len(left):
                left = left[self._file.write(left) :]
        except OSError as error:
            raise FileError(
                f"cannot keep calibration data in {tempfile.gettempdir()}: {error.strerror}; "
                "free space there, set TMPDIR to another folder, or pass fewer samples (n_samples=)"
            ) from error

    def _read(self, entry: _Entry) -> Tensor:
        # A map of this tensor alone: pages of the whole file, once touched, would count as our memory.
        size = prod(entry.shape) * entry.dtype.itemsize
        if size == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        # Copied on a write, so that the file stays as it is.
        raw = np.memmap(self._file, np.uint8, "c", entry.offset, (size,))
        return torch.from_numpy(raw).view(entry.dtype).reshape(entry.shape)


def mapped(item: Any, function: Callable[[Any], Any], known: dict[int, Any] | None = None) -> Any:
    """Apply a function to the tensors (or entries) of an item, keeping its structure, and once to each tensor."""
    known = {} if known is None else known
    if isinstance(item, Tensor | _Entry):
        if id(item) not in known:
            known[id(item)] = function(item)
        return known[id(item)]
    if isinstance(item, Mapping):
        return {key: mapped(value, function, known) for key, value in item.items()}
    if isinstance(item, tuple | list):
        parts = (mapped(value, function, known) for value in item)
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    return item
