"""Tensors kept in one memory-mapped temporary file: written once, read again in any number of passes.

Memory stays that of one batch; the pages live in the operating system's cache while it has room.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feta.errors import FileError

_Entry = tuple[int, tuple[int, ...], torch.dtype]  # byte offset, shape, dtype


class Spill:
    """A sequence of tensors, tuples or dicts of tensors, on disk; removed with the object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="feta-spill-", ignore_cleanup_errors=True)
        self._path = Path(self._folder.name) / "tensors.bin"
        self._items: list[Any] = []
        self._end = 0
        self._finalizer = weakref.finalize(self, self._folder.cleanup)

    @classmethod
    def of(cls, items: Iterable[Any]) -> Spill:
        spill = cls()
        # Unbuffered: a full disk shows in the write, not when the file is closed.
        with open(spill._path, "wb", buffering=0) as file:
            for item in items:
                spill._items.append(_map(item, lambda tensor: spill._write(file, tensor)))
        return spill

    def close(self) -> None:
        self._items = []
        self._finalizer()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield _map(item, self._read)

    def _write(self, file: Any, tensor: Tensor) -> _Entry:
        data = tensor.detach().cpu().contiguous()
        raw = data.reshape(-1).view(torch.uint8).numpy() if data.numel() else np.empty(0, np.uint8)
        left = raw.data
        try:
            while len(left):
                left = left[file.write(left) :]
        except OSError as error:
            raise FileError(
                f"cannot keep calibration data in {self._folder.name}: {error.strerror}; "
                "free space there, set TMPDIR to another folder, or pass fewer samples (n_samples=)"
            ) from error
        entry = (self._end, tuple(data.shape), data.dtype)
        self._end += raw.nbytes
        return entry

    def _read(self, entry: _Entry) -> Tensor:
        offset, shape, dtype = entry
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        # Copy-on-write: a caller that changes its tensor changes neither the file nor later passes.
        raw = np.memmap(self._path, dtype=np.uint8, mode="c", offset=offset, shape=(size,))
        return torch.from_numpy(raw).view(dtype).reshape(shape)


def _map(item: Any, function: Any) -> Any:
    """Apply a function to the tensors (or entries) of an item, keeping its structure."""
    if isinstance(item, Mapping):
        return {key: _map(value, function) for key, value in item.items()}
    if isinstance(item, list):
        return [_map(value, function) for value in item]
    if isinstance(item, Tensor) or (
        isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], torch.dtype)
    ):
        return function(item)
    if isinstance(item, tuple):
        return tuple(_map(value, function) for value in item)
    return item
