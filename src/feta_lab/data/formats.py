"""The two file formats: IDX (MNIST and its kin) and CIFAR's binary rows.

An IDX file is 00 00, the type (08: unsigned bytes), the number of dimensions, each dimension as a
big-endian 32-bit number, then the values. A CIFAR file is rows of 3073 bytes: the label, then the
pixels channel first. Errors name the file and the offset, which counts unpacked bytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feta.errors import DataError
from feta_lab.data.catalog import CIFAR_IMAGE, CIFAR_ROW, CLASSES

Bytes = NDArray[np.uint8]

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 8


class Raw(NamedTuple):
    """The unpacked bytes of a file, and what to call it in errors."""

    values: Bytes
    where: str


def read_raw(path: Path, size: int) -> Raw:
    """The file unpacked, plain or gzip by its first bytes; never more than `size` + 1 bytes of it."""
    # One byte more than wanted: it shows trailing bytes, and reading past the end makes gzip check its CRC.
    buffer = np.empty(size + 1, dtype=np.uint8)
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] != GZIP_MAGIC:
                return Raw(buffer[: _fill(file, buffer, path)], str(path))
            with gzip.GzipFile(fileobj=file) as unpacked:
                return Raw(buffer[: _fill(unpacked, buffer, path)], f"{path} (unpacked)")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _fill(stream: io.BufferedIOBase, buffer: Bytes, path: Path) -> int:
    """Read until the stream ends or the buffer is full; how many bytes that was."""
    view, filled = buffer.data, 0
    try:
        # read1 hands over what was unpacked before a fault, so that `filled` tells where the fault is.
        while filled < len(view) and (chunk := stream.read1(len(view) - filled)):
            view[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: the gzip data is cut or corrupt after unpacked byte {filled} ({error}); get it anew"
        ) from error
    return filled


def parse_idx(raw: Raw, shape: tuple[int, ...]) -> Bytes:
    """The values as an array of `shape`, a view of the raw bytes."""
    header = 4 + 4 * len(shape)
    _need(raw, 0, b"\x00\x00", "to be an IDX file")
    _need(raw, 2, bytes([UNSIGNED_BYTES]), "for unsigned bytes")
    _need(raw, 3, bytes([len(shape)]), f"for {len(shape)} dimensions")
    if len(raw.values) < header:
        raise DataError(f"{raw.where}: ends at byte {len(raw.values)}, needs {header} for its header alone")
    got = raw.values[4:header].view(">u4").tolist()
    for axis, (size, must) in enumerate(zip(got, shape, strict=True)):
        if size != must:
            raise DataError(
                f"{raw.where}: dimension {axis} at byte {4 + 4 * axis} must be {must}, got {size}"
            )
    _need_size(raw, header + int(np.prod(shape)))
    return raw.values[header:].reshape(shape)


def parse_cifar(raw: Raw, rows: int) -> tuple[Bytes, Bytes]:
    """Images (rows, 3, 32, 32) and labels (rows,), both views of the raw bytes."""
    _need_size(raw, rows * CIFAR_ROW)
    table = raw.values.reshape(rows, CIFAR_ROW)
    return table[:, 1:].reshape(rows, *CIFAR_IMAGE), table[:, 0]


def check_labels(labels: Bytes, where: str, first: int, stride: int) -> None:
    """Every label must be a class; label i lies at byte first + i * stride."""
    bad = np.flatnonzero(labels >= CLASSES)
    if len(bad):
        offset, got = first + int(bad[0]) * stride, int(labels[bad[0]])
        raise DataError(f"{where}: label at byte {offset} must be 0..{CLASSES - 1}, got {got}")


def _need(raw: Raw, offset: int, must: bytes, meaning: str) -> None:
    got = raw.values[offset : offset + len(must)].tobytes()
    if len(got) < len(must):
        raise DataError(f"{raw.where}: ends at byte {len(raw.values)}, inside its header")
    if got != must:
        raise DataError(f"{raw.where}: byte {offset} must be {must.hex(' ')} {meaning}, got {got.hex(' ')}")


def _need_size(raw: Raw, size: int) -> None:
    if len(raw.values) < size:
        raise DataError(f"{raw.where}: ends at byte {len(raw.values)}, needs {size}; get the file anew")
    if len(raw.values) > size:
        raise DataError(f"{raw.where}: must end at byte {size}, but more bytes follow; get the file anew")
