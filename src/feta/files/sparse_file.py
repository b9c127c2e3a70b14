"""Tensors in one safetensors file, really smaller where they are sparse, and checked when they are read.

A tensor `name` is stored, after the layout that is asked for,
    "small"                as name.packed, entropy coded and without loss (files.packed), where that is smaller
    "compressed-tensors"   as values and a bit mask (files.bitmask), where that is smaller
    "dense"                as it is
and under its own name otherwise. Tensors that share their memory are stored once. No pickle is ever read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from feta.errors import ConfigError, FileError
from feta.files import bitmask, container, lossy
from feta.files.atomic import write_atomic
from feta.files.packed import Note, pack, unpack

Layout = Literal["small", "compressed-tensors", "dense"]
METADATA, NOTES, SAME, DTYPES = "feta", "feta.packed", "feta.same", "feta.dtypes"
PACKED = ".packed"


def encode(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    *,
    layout: Layout = "small",
    dtype: lossy.Smaller | None = None,
) -> bytes:
    """The whole file as bytes."""
    if layout not in get_args(Layout):
        raise ConfigError(f"save.layout must be one of {', '.join(get_args(Layout))}, got {layout!r}")
    lossy.check(dtype)
    plain, same = _once(tensors)
    had: dict[str, str] = {}
    if dtype is not None:
        plain, had = lossy.lessen(plain, dtype)
    stored: dict[str, Tensor] = {}
    notes: dict[str, Note] = {}
    for name, tensor in plain.items():
        parts = {name: tensor}
        if layout == "small" and (packed := pack(tensor)) is not None:
            notes[name], parts = packed[0], {name + PACKED: packed[1]}
        elif layout == "compressed-tensors":
            parts = bitmask.compress(name, tensor) or parts
        clash = sorted(set(parts) & (set(stored) | (set(tensors) - {name})))
        if clash or name.endswith((PACKED, ".bitmask")):
            ends = f"{PACKED}, .scale or {', '.join(bitmask.PARTS)} of another tensor"
            raise FileError(f"tensor names must not end in {ends}, got {clash or name}")
        stored.update(parts)
    known = {METADATA: dict(metadata), NOTES: notes, SAME: same, DTYPES: had}
    texts = {key: json.dumps(value, sort_keys=True) for key, value in known.items() if value or key == METADATA}
    return container.to_bytes(stored, texts)


def write(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> int:
    """Write the file atomically; its size in bytes."""
    content = encode(tensors, metadata)
    write_atomic(Path(path), content)
    return len(content)


def read(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, with sparse ones restored, and metadata ({} for a safetensors file of another program)."""
    path = Path(path)
    stored, texts = container.read(path)
    metadata, notes, same, had = (_object(path, texts, key) for key in (METADATA, NOTES, SAME, DTYPES))
    for name, note in notes.items():
        if name + PACKED not in stored:
            raise FileError(f"{path}: tensor '{name}' lacks its parts ['packed']")
        stored[name] = unpack(note, stored.pop(name + PACKED), f"{path}: tensor '{name}'")
    tensors = lossy.regain(bitmask.restore_all(stored, str(path)), had, str(path))
    for name, other in same.items():
        if str(other) not in tensors:
            raise FileError(f"{path}: tensor '{name}' must equal '{other}', got none of that name")
        tensors[name] = tensors[str(other)]
    return tensors, metadata


def stored_bytes(path: Path | str) -> dict[str, int]:
    """Bytes each tensor takes in a file, its parts added up."""
    stored, _ = container.read(Path(path))
    tensors, _ = read(path)
    sizes = dict.fromkeys(tensors, 0)
    for name, tensor in stored.items():
        stem = name.rpartition(".")[0]
        owner = next(key for key in (name, stem, stem + bitmask.WEIGHT, stem.rpartition(".")[0]) if key in sizes)
        sizes[owner] += tensor.numel() * tensor.element_size()
    return sizes


def _once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors on the CPU, each once, and for every other name of one the name it is stored under."""
    plain: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise FileError(f"state must hold tensors alone, got a {kind} in '{name}'; only tensors can be saved")
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and place in seen:
            same[name] = seen[place]
            continue
        seen[place] = name
        here = tensor.detach().cpu().contiguous()
        start = here.untyped_storage().data_ptr()
        plain[name] = here.clone() if start in memory else here  # safetensors refuses overlapping memory
        memory.add(start)
    return plain, same


def _object(path: Path, texts: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        found = json.loads(texts.get(key) or "{}")
    except json.JSONDecodeError as error:
        raise FileError(f"{path}: metadata must be a JSON object, got {error}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path}: metadata must be a JSON object, got {texts[key]}")
    return found
