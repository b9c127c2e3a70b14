"""One tensor as one row of bytes: positions of its non-zero entries, and their values in planes.

Nothing is lost but the sign of zeros: weights times a mask leave a negative zero for every other weight, which would
take as much as a weight.

Beside the bytes goes a note, a JSON object that tells how to read them:
    dtype, shape, nonzeros; where: the kind of positions; base: see planes; bytes: the lengths of the parts, in order
"""

import math
import os
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feta.errors import FileError
from feta.files import planes, positions
from feta.files.plain import tamed

Note = dict[str, Any]
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (*planes.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
}
NOTE_BYTES = 40  # what a note takes in the index, about


def pack(tensor: Tensor) -> tuple[Note, Tensor] | None:
    """The note and the bytes of a tensor on the CPU, or None where it would be no smaller."""
    name, n_bytes = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
    if name not in DTYPES or n_bytes <= NOTE_BYTES:
        return None
    words = tensor.reshape(-1).view(torch.uint8).numpy().view(planes.WORDS[tensor.element_size()])
    places = np.flatnonzero(words << 1 if tensor.is_floating_point() else words)  # the sign is the first bit
    where, coded = positions.encode(places, len(words))
    base, parts = planes.encode(words if where == "all" else words[places], tensor.dtype)
    parts.insert(0, coded)
    content = b"".join(parts)
    if len(content) + NOTE_BYTES >= n_bytes:
        return None
    note = {"dtype": name, "shape": list(tensor.shape), "nonzeros": len(places), "where": where, "base": base}
    note["bytes"] = [len(part) for part in parts]
    return note, torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unpack(note: Mapping[str, Any], stored: Tensor, tensor: str) -> Tensor:
    """The tensor. Raises FileError, which names `tensor`, where note and bytes do not fit."""
    try:
        dtype, shape = DTYPES[note["dtype"]], [int(size) for size in note["shape"]]
        count, base, total = int(note["nonzeros"]), int(note["base"]), math.prod(shape)
        if min(shape, default=0) < 0 or not 0 <= count <= total:
            raise ValueError(f"shape {shape} with {count} non-zero entries")
        if total * dtype.itemsize > memory():
            raise ValueError(f"shape {shape}, more than this machine's memory holds")
        ends = list(accumulate((int(length) for length in note["bytes"]), initial=0))
        if stored.dtype != torch.uint8 or stored.ndim != 1 or ends != sorted(ends) or ends[-1] != len(stored):
            raise ValueError(f"{len(stored.reshape(-1))} bytes where {ends[-1]} belong")
        content = stored.numpy()
        where, *parts = (content[start:end] for start, end in pairwise(ends))
        places = positions.decode(note["where"], where, count, total)
        values = planes.decode(parts, base, count, dtype)
        if places is not None:
            words = np.zeros(total, values.dtype)
            words[places] = values
            values = words
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise FileError(f"{tensor} must be packed as its note says, got {tamed(error)}") from error
    return torch.from_numpy(values.view(np.uint8)).view(dtype).reshape(shape)


def memory() -> int:
    """The bytes of this machine's memory. A tensor of zeros takes none in a file, whatever size the file names."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return 2**40
