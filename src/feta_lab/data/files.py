"""The files of a data set: where they lie on this machine, and what each holds.

The places are searched in this order: `--data-dir` and nothing else when it is given; otherwise FETA_DATA,
the folder of Debian's package, and feta's cache. A folder given by `--data-dir` or FETA_DATA either holds
one folder per set or is the folder of the set.

Files are plain or gzip. An IDX file starts with two zero bytes, the value type (8: unsigned bytes), the number of
dimensions, and each dimension as a big-endian 32-bit number; the values follow. A CIFAR file is a list of rows of
3073 bytes: the label, then the pixels, channel first.
"""

import gzip
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feta.errors import DataError
from feta_lab.data.catalog import CATALOG, CIFAR_IMAGE, CLASSES, OWNERS, DataFile, Entry, entry

EMBEDDED = Path(__file__).resolve().parents[1] / "embedded"
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Location:
    """A folder where a data set may lie."""

    folder: Path
    origin: str  # why the folder is searched: --data-dir, FETA_DATA, ...
    missing: tuple[str, ...]  # files of the set that are not there

    def __str__(self) -> str:
        state = f"lacks {', '.join(self.missing)}" if self.missing else "found"
        return f"{self.origin}: {self.folder} ({state if os.path.isdir(self.folder) else 'no such folder'})"


def find(name: str, data_dir: Path | None = None) -> Location | None:
    """Return the first place that has every file of the set `name`, or None; no file is read.

    With `data_dir`, only that folder is searched. Raises ConfigError for an unknown name.

        find("mnist-mini").folder
    """
    return next((place for place in looked_in(name, data_dir) if not place.missing), None)


def looked_in(name: str, data_dir: Path | None = None) -> list[Location]:
    """Return every place that `find` would search with these arguments, in the same order."""
    known = entry(name)
    if not known.sites:
        places = [(EMBEDDED, "embedded in feta")]
    elif data_dir is not None:
        places = [(folder, "--data-dir") for folder in _folders(known, data_dir)]
    else:
        chosen = os.environ.get("FETA_DATA")
        places = [(folder, "FETA_DATA") for folder in _folders(known, Path(chosen))] if chosen else []
        if known.system is not None:
            places.append((Path(known.system), "Debian's dataset package"))
        places.append((cache_dir() / known.folder, "feta's cache"))
    return [Location(folder, origin, _missing(known, folder)) for folder, origin in places]


def require(name: str, data_dir: Path | None = None) -> Location:
    """Like `find`, but raise a DataError that lists the places and the cure when the set is missing."""
    if found := find(name, data_dir):
        return found
    known = entry(name)
    looked = "\n".join(f"  {place}" for place in looked_in(name, data_dir))
    raise DataError(
        f"data set '{name}' was not found. These places were searched:\n{looked}\n"
        f"Put {', '.join(file.name for file in known.files)} (plain or .gz) into one of these folders, "
        f"or give --data-dir or set FETA_DATA to a folder that holds {known.folder}/, "
        f"or run `feta data fetch {name}`. The data set 'mnist-mini' is always available."
    )


def cache_dir() -> Path:
    """Return FETA_CACHE, or else the folder `feta` in the platform's cache."""
    if chosen := os.environ.get("FETA_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "feta"


def path_of(file: DataFile, folder: Path) -> Path:
    """Return the path of a file, plain or .gz, also with the dot some unpackers put before idx."""
    names = (file.name, file.name.replace("-idx", ".idx"))
    paths = [folder / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    # Path.is_file raises an error for a folder that may not be entered; os.path.isfile does not.
    return next(filter(os.path.isfile, paths), paths[0])


def _folders(known: Entry, root: Path) -> list[Path]:
    """Return the folders that a folder chosen by the user stands for: the set's folder in it, and itself."""
    root = root.expanduser()
    # MNIST and Fashion-MNIST use the same file names: a folder named after another set belongs to that set.
    others = {other.folder for other in CATALOG.values()} - {known.folder}
    return [root / known.folder, *([] if root.name in others else [root])]


def _missing(known: Entry, folder: Path) -> tuple[str, ...]:
    return tuple(file.name for file in known.files if not os.path.isfile(path_of(file, folder)))


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
