"""safetensors files with a checksum of every tensor and of the header, so that no changed bit goes unseen.

The header's metadata holds
    feta.crc32    a list: the CRC-32 of each tensor's bytes, in the order of the header
    feta.header   the CRC-32 of all bytes before the tensors, taken with zeros in place of itself
Files of other programs have neither and are read all the same. No pickle is ever read.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from feta.errors import FileError
from feta.files.pickles import beside, conversion
from feta.files.plain import from_json, object_from_json, shortened

TENSORS, HEADER = "feta.crc32", "feta.header"
ARCHIVE = "feta.archive"  # a tensor that holds the checksums of what is in it (files.archive)
BLANK = "00000000"
PICKLE_HEADS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
CURE = "the file was damaged after it was written: copy it again from where it came from"


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The whole file. Equal input gives equal bytes: safetensors' own order of the metadata is random."""
    content = save(dict(tensors), metadata={"format": "pt", **metadata})
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    sums = [_sum(tensors[name]) for name in header if name not in ("__metadata__", ARCHIVE)]
    known = header["__metadata__"] | {TENSORS: json.dumps(sums, separators=(",", ":")), HEADER: BLANK}
    header["__metadata__"] = dict(sorted(known.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    head = len(text).to_bytes(8, "little") + text
    head = head.replace(_entry(BLANK), _entry(f"{zlib.crc32(head):08x}"), 1)
    return b"".join((head, memoryview(content)[end:]))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata, all checked. Raises FileError, which names the tensor that is damaged."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe may wait for ever
            raise FileError(f"cannot read {path}: it must be a file, got a pipe, a socket or a device")
        with open(path, "rb") as file:
            head = file.read(9)
            file.seek(0)
            length = 8 + int.from_bytes(head[:8], "little")
            start = file.read(min(length, path.stat().st_size))
    except FileError:
        raise
    except (OSError, ValueError) as error:  # a name may hold a zero byte
        raise FileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            metadata = opened.metadata() or {}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # A safetensors file may begin like a pickle, since its first 8 bytes are the length of its JSON header.
        if head.startswith(PICKLE_HEADS) and not head.endswith(b"{"):
            new = beside(path)
            raise FileError(
                f"{path} must be a safetensors file, got a pickle or a zip archive, which feta never loads: "
                "reading one can run code. If it is a file of torch.save that you trust, convert it: "
                f"{conversion(path, new, weights=True)} and then give {new}"
            ) from None
        raise FileError(f"{path} must be a whole safetensors file, got one that cannot be read: {error}") from error
    _check(path, start, tensors, metadata)
    return tensors, metadata


def metadata_of(path: Path) -> dict[str, str]:
    """The metadata alone, not checked; {} where there is none that can be read."""
    try:
        with safe_open(path, framework="pt") as opened:
            return opened.metadata() or {}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        return {}


def _check(path: Path, start: bytes, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    if HEADER not in metadata:
        if any(key.startswith("feta.") for key in metadata):
            raise FileError(f"{path} must have a checksum of its header, got none; {CURE}")
        return  # a file of another program, or of feta before it had checksums
    found = f"{zlib.crc32(start.replace(_entry(metadata[HEADER]), _entry(BLANK), 1)):08x}"
    if found != metadata[HEADER]:
        raise FileError(f"{path}: the header's checksum must be {shortened(metadata[HEADER])}, got {found}; {CURE}")
    try:
        names = [name for name in object_from_json(start[8:]) if name not in ("__metadata__", ARCHIVE)]
        right = dict(zip(names, from_json(metadata.get(TENSORS, "")), strict=True))
    except (TypeError, ValueError) as error:
        raise FileError(f"{path} must have a checksum for each of its tensors, got {error}") from error
    for name in names:
        if (here := _sum(tensors[name])) != right[name]:
            raise FileError(
                f"{path}: tensor '{name}' must have the checksum {shortened(right[name])}, got {here}; {CURE}"
            )


def _entry(value: str) -> bytes:
    return f'"{HEADER}":"{value}"'.encode()


def _sum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().reshape(-1).contiguous().view(uint8).numpy().data)
