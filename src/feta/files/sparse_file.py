"""Tensors in one safetensors file, sparse ones as values plus a bit mask: lossless and really smaller.

A tensor `name` that is smaller that way is stored as
    name.compressed   its non-zero values, row by row, in its own dtype
    name.bitmask      one bit per entry, packed into uint8, first entry in the highest bit
    name.shape        int64
and every other tensor as it is. Zeros are stored as +0. At 90 % sparsity a float32 tensor takes
7.6 times fewer bytes. No pickle is ever read.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from feta.errors import FileError
from feta.files.atomic import write_atomic
from feta.sparsity import stored_size

PARTS = ("compressed", "bitmask", "shape")
METADATA_KEY = "feta"
PICKLE_HEADS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """The whole file as bytes."""
    stored: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise FileError(f"state must hold tensors alone, got a {kind} in '{name}'; only tensors can be saved")
        plain = tensor.detach().cpu().contiguous()
        start = plain.untyped_storage().data_ptr()
        # A copy where its memory is in the file already: safetensors stores no tied weights.
        named = _compressed(name, plain.clone() if start in memory else plain)
        memory.add(start)
        clash = sorted(set(named) & (set(stored) | (set(tensors) - {name})))
        if clash or name.endswith(".bitmask"):
            raise FileError(
                f"tensor names must not end in .bitmask or {PARTS} of another tensor, got {clash or name}"
            )
        stored.update(named)
    text = json.dumps(dict(metadata), sort_keys=True)
    return _sorted(to_bytes(stored, metadata={"format": "pt", METADATA_KEY: text}))


def write(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> int:
    """Write the file atomically; its size in bytes."""
    content = encode(tensors, metadata)
    write_atomic(Path(path), content)
    return len(content)


def read(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, with sparse ones restored, and metadata ({} for a safetensors file of another program)."""
    path = Path(path)
    stored, text = _read_safetensors(path)
    try:
        metadata = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise FileError(f"{path}: metadata must be a JSON object, got {error}") from error
    if not isinstance(metadata, dict):
        raise FileError(f"{path}: metadata must be a JSON object, got {text}")
    compressed = [name.removesuffix(".bitmask") for name in stored if name.endswith(".bitmask")]
    for name in compressed:
        missing = [part for part in PARTS if f"{name}.{part}" not in stored]
        if missing:
            raise FileError(f"{path}: tensor '{name}' lacks its parts {missing}")
        values, bits, shape = (stored.pop(f"{name}.{part}") for part in PARTS)
        stored[name] = _restore(values, bits, shape, f"{path}: tensor '{name}'")
    return stored, metadata


def stored_bytes(path: Path | str) -> dict[str, int]:
    """Bytes each tensor takes in a file, its parts added up."""
    stored, _ = _read_safetensors(Path(path))
    sizes: dict[str, int] = {}
    for name, tensor in stored.items():
        stem, _, part = name.rpartition(".")
        owner = stem if part in PARTS and f"{stem}.bitmask" in stored else name
        sizes[owner] = sizes.get(owner, 0) + tensor.numel() * tensor.element_size()
    return sizes


def _sorted(content: bytes) -> bytes:
    """The file with its metadata in order: safetensors' is random, and equal networks must give equal bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[end:]))


def _compressed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """What is stored of a tensor: its parts, or the tensor itself where they are no smaller."""
    if stored_size(tensor) == tensor.numel() * tensor.element_size():
        return {name: tensor}
    mask = tensor != 0
    bits = torch.from_numpy(np.packbits(mask.reshape(-1).numpy()))
    parts = (tensor[mask], bits, torch.tensor(tensor.shape, dtype=torch.int64))
    return {f"{name}.{part}": stored for part, stored in zip(PARTS, parts, strict=True)}


def _restore(values: Tensor, bits: Tensor, shape: Tensor, where: str) -> Tensor:
    kinds = [(part.ndim, part.dtype) for part in (values, bits, shape)]
    if kinds != [(1, values.dtype), (1, torch.uint8), (1, torch.int64)]:
        raise FileError(f"{where}: parts must be one-dimensional, mask uint8 and shape int64, got {kinds}")
    sizes = shape.tolist()
    if min(sizes, default=0) < 0:
        raise FileError(f"{where}: shape must be of whole numbers >= 0, got {sizes}")
    total = math.prod(sizes)
    if len(bits) != -(-total // 8):
        raise FileError(f"{where}: a mask for shape {sizes} must have {-(-total // 8)} bytes, got {len(bits)}")
    mask = torch.from_numpy(np.unpackbits(bits.numpy(), count=total)).bool()
    if int(mask.sum()) != len(values):
        raise FileError(f"{where}: mask and values must agree, got {int(mask.sum())} and {len(values)}")
    flat = torch.zeros(total, dtype=values.dtype)
    flat[mask] = values
    return flat.reshape(sizes)


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], str]:
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    try:
        with safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get(METADATA_KEY, "")
            return {name: opened.get_tensor(name) for name in opened.keys()}, text  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        # A safetensors file may begin like a pickle, since its first 8 bytes are the length of its JSON header.
        if head.startswith(PICKLE_HEADS) and not head.endswith(b"{"):
            raise FileError(
                f"{path} must be a safetensors file, got a pickle or a zip archive, which feta never loads: "
                "reading one can run code. Save it with safetensors.torch.save_file(model.state_dict(), ...)"
            ) from None
        raise FileError(f"{path} must be a whole safetensors file, got one that cannot be read: {error}") from error
