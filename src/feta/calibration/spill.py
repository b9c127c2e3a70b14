"""Tensors kept in one memory-mapped temporary file: written once, read again in any number of passes.

Memory stays that of one batch; the pages live in the operating system's cache while it has room.
"""

from __future__ import annotations

import functools
import math
import mmap
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from feta.errors import FileError

_Entry = tuple[int, tuple[int, ...], torch.dtype]  # byte offset in the file, shape, dtype
_Mapped = tuple[mmap.mmap | None, int]  # a part of the file, and where it begins

ALIGNMENT = 16  # of every tensor: that of the largest dtype


class Spill:
    """A sequence of tensors, tuples or dicts of tensors, on disk; removed with the object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="feta-spill-", ignore_cleanup_errors=True)
        self._path = Path(self._folder.name) / "tensors.bin"
        self._items: list[tuple[tuple[int, int], Any]] = []  # first and last byte of an item, and its entries
        self._end = 0
        self._finalizer = weakref.finalize(self, self._folder.cleanup)

    @classmethod
    def of(cls, items: Iterable[Any]) -> Spill:
        spill = cls()
        # Unbuffered: a full disk shows in the write, not when the file is closed.
        with open(spill._path, "wb", buffering=0) as file:
            for item in items:
                start = spill._end
                entries = _map(item, functools.partial(spill._write, file))
                spill._items.append(((start, spill._end), entries))
        return spill

    def close(self) -> None:
        self._items = []
        self._finalizer()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        if not self._items:
            return
        with open(self._path, "rb") as file:
            for (start, end), entries in self._items:
                yield _map(entries, functools.partial(_read, _window(file, start, end)))

    def _write(self, file: BinaryIO, tensor: Tensor) -> _Entry:
        data = tensor.detach().cpu().contiguous()
        raw = data.reshape(-1).view(torch.uint8).numpy() if data.numel() else np.empty(0, np.uint8)
        self._put(file, memoryview(bytes(-self._end % ALIGNMENT)))
        entry = (self._end, tuple(data.shape), data.dtype)
        self._put(file, raw.data)
        return entry

    def _put(self, file: BinaryIO, left: memoryview) -> None:
        self._end += len(left)
        try:
            while len(left):
                left = left[file.write(left) :]
        except OSError as error:
            raise FileError(
                f"cannot keep calibration data in {self._folder.name}: {error.strerror}; "
                "free space there, set TMPDIR to another folder, or pass fewer samples (n_samples=)"
            ) from error


def _window(file: BinaryIO, start: int, end: int) -> _Mapped:
    """Bytes of the file, by their place in it; gone with the tensors that are made of it.

    One for each item: pages of the whole file, once touched, would count as our memory. Copy-on-write: a caller
    that changes its tensor changes neither the file nor later passes.
    """
    first = start - start % mmap.ALLOCATIONGRANULARITY
    if end == start:
        return None, first
    return mmap.mmap(file.fileno(), end - first, access=mmap.ACCESS_COPY, offset=first), first


def _read(window: _Mapped, entry: _Entry) -> Tensor:
    mapped, first = window
    offset, shape, dtype = entry
    count = math.prod(shape)
    if mapped is None or count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset - first).reshape(shape)


def _map(item: Any, function: Any) -> Any:
    """Apply a function to the tensors (or entries) of an item, keeping its structure."""
    if isinstance(item, Mapping):
        return {key: _map(value, function) for key, value in item.items()}
    if isinstance(item, list):
        return [_map(value, function) for value in item]
    if isinstance(item, Tensor) or (isinstance(item, tuple) and len(item) == 3 and isinstance(item[2], torch.dtype)):
        return function(item)
    if isinstance(item, tuple):
        return tuple(_map(value, function) for value in item)
    return item
