"""Sparse matrices as values and a bit mask: the layout "sparse-bitmask" of compressed-tensors, and feta's first one.

A weight `layer.weight` that is smaller that way is stored as
    layer.compressed    its non-zero values, row by row, in its own dtype
    layer.bitmask       uint8, rows × ceil(columns / 8): one bit per entry, the first in the lowest bit
    layer.row_offsets   int64: where each row's values start
    layer.shape         int64
Files before checksums have `name.compressed`, `name.bitmask` and `name.shape`, the mask in one row for the whole
tensor with the first entry in the highest bit; these are read, not written.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from feta.errors import FileError
from feta.files.planes import FLOATS

PARTS = ("compressed", "bitmask", "shape", "row_offsets")
WEIGHT = ".weight"


def compress(name: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """What is stored of a tensor, or None where it is no matrix of weights, or would be no smaller."""
    if tensor.ndim != 2 or not name.endswith(WEIGHT) or tensor.dtype not in FLOATS:
        return None
    mask = tensor != 0
    counts = mask.sum(1)
    bits = torch.from_numpy(np.packbits(mask.numpy(), axis=-1, bitorder="little"))
    parts = (tensor[mask], bits, torch.tensor(tensor.shape), counts.cumsum(0) - counts)
    if sum(part.nbytes for part in parts) >= tensor.nbytes:
        return None
    stem = name.removesuffix(WEIGHT)
    return {f"{stem}.{part}": stored for part, stored in zip(PARTS, parts, strict=True)}


def restore_all(stored: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors with every masked one restored under its own name."""
    tensors = dict(stored)
    for stem in [name.removesuffix(".bitmask") for name in stored if name.endswith(".bitmask")]:
        parts = {part: tensors.pop(f"{stem}.{part}", None) for part in PARTS}
        first = parts.pop("row_offsets") is None  # the first layout; the offsets follow from the mask
        name = stem if first else stem + WEIGHT
        missing = [part for part, tensor in parts.items() if tensor is None]
        if missing:
            raise FileError(f"{where}: tensor '{name}' lacks its parts {missing}")
        tensors[name] = _restore(parts, f"{where}: tensor '{name}'", first)  # type: ignore[arg-type]
    return tensors


def _restore(parts: Mapping[str, Tensor], where: str, first: bool) -> Tensor:
    values, bits, shape = parts["compressed"], parts["bitmask"], parts["shape"]
    kinds = [(part.ndim, part.dtype) for part in (values, bits, shape)]
    if kinds != [(1, values.dtype), (1 if first else 2, torch.uint8), (1, torch.int64)]:
        raise FileError(f"{where}: parts must be one-dimensional, mask uint8 and shape int64, got {kinds}")
    sizes = shape.tolist()
    if min(sizes, default=0) < 0 or not (first or len(sizes) == 2):
        raise FileError(f"{where}: shape must be of whole numbers >= 0, got {sizes}")
    rows, columns = (1, math.prod(sizes)) if first else sizes
    if bits.numel() != rows * -(-columns // 8) or bits.shape[0] != (bits.numel() if first else rows):
        expected = rows * -(-columns // 8)
        raise FileError(f"{where}: a mask for shape {sizes} must have {expected} bytes, got {bits.numel()}")
    packed = bits.numpy().reshape(rows, -1) if bits.numel() else np.empty((rows, 0), np.uint8)
    mask = np.unpackbits(packed, axis=1, count=columns, bitorder="big" if first else "little")
    places = np.flatnonzero(mask.view(np.bool_))  # indices fill a tensor several times faster than a mask
    if len(places) != len(values):
        raise FileError(f"{where}: mask and values must agree, got {len(places)} and {len(values)}")
    flat = torch.zeros(math.prod(sizes), dtype=values.dtype)
    flat[torch.from_numpy(places)] = values
    return flat.reshape(sizes)
