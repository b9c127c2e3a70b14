"""Tensors in one safetensors file, really smaller where they are sparse, and checked when they are read.

A tensor `name` is stored, after the layout that is asked for,
    "small"                as name.packed, entropy coded and without loss (files.packed), where that is smaller
    "compressed-tensors"   as values and a bit mask (files.bitmask), where that is smaller
    "dense"                as it is
and under its own name otherwise; "small" joins all of them to one (files.archive). Tensors that share their memory
are stored once. No pickle is ever read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, uint8
from torch.nn.parameter import is_lazy

from feta.errors import ConfigError, FileError
from feta.files import archive, bitmask, container, lossy
from feta.files.atomic import write_atomic
from feta.files.packed import Note, pack, unpack
from feta.files.plain import check, object_from_json, shortened

Layout = Literal["small", "compressed-tensors", "dense"]
METADATA, INDEX = "feta", "feta.index"
NOTES, SAME, DTYPES = "feta.packed", "feta.same", "feta.dtypes"  # facts about the tensors
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
    facts = {key: value for key, value in ((NOTES, notes), (SAME, same), (DTYPES, had)) if value}
    text = json.dumps(dict(metadata), sort_keys=True)
    if layout == "small":
        joined, index = archive.join(stored, facts)
        return container.to_bytes({container.ARCHIVE: joined}, {METADATA: text, INDEX: index})
    return container.to_bytes(stored, {METADATA: text, **{key: json.dumps(value) for key, value in facts.items()}})


def write(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> int:
    """Write the file atomically; its size in bytes."""
    content = encode(tensors, metadata)
    write_atomic(Path(path), content)
    return len(content)


@dataclass(frozen=True)
class Opened:
    """A file whose bytes are read and whose sparse tensors are not restored yet."""

    path: Path
    stored: dict[str, Tensor]
    facts: dict[str, dict[str, Any]]

    @property
    def metadata(self) -> dict[str, Any]:
        return self.facts[METADATA]

    def check_shapes(self, known: Mapping[str, Tensor]) -> None:
        """Raise FileError where a tensor to restore has another shape than the known one, before it takes memory."""
        for name, note in self.facts[NOTES].items():
            said = note.get("shape") if isinstance(note, dict) else None
            own = known.get(name)
            if isinstance(own, Tensor) and not is_lazy(own) and said != list(own.shape):
                wanted = f"'{name}' of shape {tuple(own.shape)}, got {shortened(said)}"
                raise FileError(f"{self.path} must hold the weights of this model: {wanted}")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, those stored as something else restored."""
        path, stored = self.path, dict(self.stored)
        for name, note in self.facts[NOTES].items():
            if name + PACKED not in stored:
                raise FileError(f"{path}: tensor '{name}' lacks its parts ['packed']")
            stored[name] = unpack(note, stored.pop(name + PACKED), f"{path}: tensor '{name}'")
        tensors = lossy.regain(bitmask.restore_all(stored, str(path)), self.facts[DTYPES], str(path))
        for name, other in self.facts[SAME].items():
            if str(other) not in tensors:
                raise FileError(f"{path}: tensor '{name}' must equal '{other}', got none of that name")
            tensors[name] = tensors[str(other)]
        return tensors


def read(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, with sparse ones restored, and metadata ({} for a safetensors file of another program)."""
    opened = open_file(path)
    return opened.tensors(), opened.metadata


def metadata_of(path: Path | str) -> dict[str, Any]:
    """What a file says of itself, without its tensors and not checked; {} where it cannot be read."""
    try:
        return object_from_json(container.metadata_of(Path(path)).get(METADATA) or "{}", finite=False)
    except ValueError:
        return {}


def stored_bytes(path: Path | str) -> dict[str, int]:
    """Bytes each tensor takes in a file, its parts added up."""
    opened = open_file(path)
    sizes = dict.fromkeys(opened.tensors(), 0)
    for name, tensor in opened.stored.items():
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


def open_file(path: Path | str) -> Opened:
    """The tensors of a file as they are stored, and the facts about them with the metadata, all of them objects."""
    path = Path(path)
    stored, texts = container.read(path)
    try:
        facts = {key: object_from_json(texts.get(key) or "{}") for key in (NOTES, SAME, DTYPES)}
        metadata = object_from_json(texts.get(METADATA) or "{}", finite=False)
        # A configuration of transformers may hold infinities, and its own reader takes them.
        check({key: value for key, value in metadata.items() if key != "transformers"})
    except ValueError as error:
        raise FileError(f"{path}: metadata must be a JSON object, got {error}") from error
    if INDEX in texts:
        joined = stored.get(container.ARCHIVE)
        if joined is None or (joined.ndim, joined.dtype) != (1, uint8):
            raise FileError(f"{path} must hold its tensors in {container.ARCHIVE}, got none")
        stored, inner = archive.split(joined, texts[INDEX], str(path), container.CURE)
        facts |= inner
    odd = [value for value in facts.values() if not isinstance(value, dict)]
    if odd:
        raise FileError(f"{path}: facts about tensors must be JSON objects, got {shortened(odd[0])}")
    return Opened(path, stored, {**facts, METADATA: metadata})
