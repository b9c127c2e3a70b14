"""The table of data sets (catalog.toml): their files, the checksums of those files, and the sites that offer them.

The checksums are of the unpacked bytes, because the same images are distributed in different gzip files.
"""

import math
import struct
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from feta.errors import unknown_name

CLASSES = 10
CIFAR_IMAGE = (3, 32, 32)
CIFAR_ROW = 1 + math.prod(CIFAR_IMAGE)  # the label, then 1024 red, 1024 green and 1024 blue values


@dataclass(frozen=True)
class DataFile:
    """One file of a data set. `shape` is the shape in the IDX header, or (images, CIFAR_ROW)."""

    name: str
    layout: Literal["idx", "cifar"]
    shape: tuple[int, ...]
    sha256: str

    @property
    def header(self) -> bytes:
        """The bytes before the first value."""
        rank = len(self.shape)
        return struct.pack(f">HBB{rank}I", 0, 8, rank, *self.shape) if self.layout == "idx" else b""

    @property
    def size(self) -> int:
        """The number of unpacked bytes."""
        return len(self.header) + math.prod(self.shape)


@dataclass(frozen=True)
class Entry:
    """A data set as its authors distribute it."""

    name: str
    label: str  # the name in figures
    folder: str
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    sites: tuple[str, ...] = ()  # base addresses in the order they are tried; none: the set is embedded in feta
    archive: str | None = None  # the tar.gz on the site that holds all files, in a folder called `folder`
    system: str | None = None  # where Debian's package installs the set
    variants: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the test labels -> label

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.train + self.test


def entry(name: str) -> Entry:
    """Return the entry called `name`; raise ConfigError, with the nearest name, when there is none."""
    if name not in CATALOG:
        raise unknown_name("data set", name, CATALOG)
    return CATALOG[name]


def _file(kind: str, count: int, sha256: str) -> DataFile:
    if kind.endswith(("images", "labels")):
        shape = (count, 28, 28) if kind.endswith("images") else (count,)
        return DataFile(f"{kind}-idx{len(shape)}-ubyte", "idx", shape, sha256)
    return DataFile(f"{kind}.bin", "cifar", (count, CIFAR_ROW), sha256)


def _entry(name: str, described: dict[str, Any]) -> Entry:
    files = {part: tuple(_file(*file) for file in described[part]) for part in ("train", "test")}
    return Entry(name, **{**described, **files, "sites": tuple(described.get("sites", ()))})


_TABLE = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
CATALOG: Mapping[str, Entry] = {name: _entry(name, described) for name, described in _TABLE.items()}
NAMES: tuple[str, ...] = tuple(CATALOG)
# MNIST and Fashion-MNIST have the same file names, counts and shapes: only the bytes tell them apart.
OWNERS = {file.sha256: f"{known.name}'s {file.name}" for known in CATALOG.values() for file in known.files}
