"""Reading one file of a data set, in either of the two formats, plain or gzip.

An IDX file starts with two zero bytes, the value type (8: unsigned bytes), the number of dimensions, and
each dimension as a big-endian 32-bit number; the values follow. A CIFAR file is a list of rows of 3073
bytes: the label, then the pixels, channel first.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feta.errors import DataError
from feta_lab.data.catalog import CIFAR_IMAGE, CLASSES, OWNERS, DataFile

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Content:
    """What a file holds: images (n, c, h, w), labels (n,), or both."""

    images: Bytes | None
    labels: Bytes | None
    size: int  # unpacked bytes
    sha256: str  # of the unpacked bytes
    official: bool  # whether that is the checksum in the catalogue


def read_file(file: DataFile, path: Path) -> Content:
    """Read the file at `path`, which must be `file` of the catalogue, and return its content.

    Bytes that differ from the official ones are accepted when header, size and labels are right. Raises
    DataError for a file that cannot be read, is damaged, or belongs to another data set.
    """
    values = unpack(path, file.size)
    start = values[: len(file.header)].tobytes()
    if start != file.header:
        raise DataError(
            f"{path}: must start with the IDX header of shape {file.shape}, {file.header.hex(' ')}, "
            f"got {start.hex(' ') or 'an empty file'}"
        )
    if len(values) != file.size:
        got = "more" if len(values) > file.size else len(values)
        raise DataError(f"{path}: must have {file.size} unpacked bytes, got {got}; get the file again")
    body, images, labels = values[len(start) :].reshape(file.shape), None, None
    if file.layout == "cifar":
        images, labels = body[:, 1:].reshape(-1, *CIFAR_IMAGE), body[:, 0]
    elif body.ndim == 1:
        labels = body
    else:
        images = body[:, None]
    if labels is not None and labels.max() >= CLASSES:
        raise DataError(f"{path}: labels must be 0..{CLASSES - 1}, got {labels.max()}")
    sha256 = hashlib.sha256(values.data).hexdigest()
    if sha256 != file.sha256 and sha256 in OWNERS:
        raise DataError(f"{path}: must be {file.name}, but its bytes are those of {OWNERS[sha256]}")
    return Content(images, labels, file.size, sha256, official=sha256 == file.sha256)


def unpack(path: Path, size: int) -> Bytes:
    """Return the unpacked bytes of a file, but at most `size` + 1 of them."""
    # The extra byte shows that a file is too long, and reading past the end makes gzip verify its CRC.
    buffer = np.empty(size + 1, dtype=np.uint8)
    try:
        with path.open("rb") as file:
            packed = file.peek(2).startswith(b"\x1f\x8b")
            stream = gzip.GzipFile(fileobj=file) if packed else file
            return buffer[: stream.readinto(buffer.data)]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip data is cut or corrupt ({error}); get the file again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
