"""The table of data sets: their files, the checksums of those files, and the sites that offer them.

The checksums are of the unpacked bytes, because the same images are distributed in different gzip files.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
    system: Path | None = None  # where Debian's package installs the set
    variants: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the test labels -> label

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.train + self.test


def entry(name: str) -> Entry:
    """Return the entry called `name`; raise ConfigError, with the nearest name, when there is none."""
    if name not in CATALOG:
        raise unknown_name("data set", name, CATALOG)
    return CATALOG[name]


def _idx(kind: str, count: int, sha256: str) -> DataFile:
    shape = (count, 28, 28) if kind.endswith("images") else (count,)
    return DataFile(f"{kind}-idx{len(shape)}-ubyte", "idx", shape, sha256)


def _batch(name: str, sha256: str) -> DataFile:
    return DataFile(f"{name}.bin", "cifar", (10_000, CIFAR_ROW), sha256)


_MNIST_TEST = (
    _idx("t10k-images", 10_000, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    _idx("t10k-labels", 10_000, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
_ENTRIES = (
    Entry(
        name="mnist-mini",
        label="MNIST (10,000 training digits)",
        folder="embedded",
        train=(
            _idx("train-images", 10_000, "2889698e6bc3614913e76901316712919d1998fc2b44512451bfe65bc1e668b1"),
            _idx("train-labels", 10_000, "651e38e2ac0632f5113ec18f1df4977117f953197819034009971a6675a0df78"),
        ),
        test=_MNIST_TEST,
    ),
    Entry(
        name="mnist",
        label="MNIST",
        folder="mnist",
        train=(
            _idx("train-images", 60_000, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
            _idx("train-labels", 60_000, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        ),
        test=_MNIST_TEST,
        sites=("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    ),
    Entry(
        name="fashion-mnist",
        label="Fashion-MNIST",
        folder="fashion-mnist",
        train=(
            _idx("train-images", 60_000, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            _idx("train-labels", 60_000, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ),
        test=(
            _idx("t10k-images", 10_000, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            _idx("t10k-labels", 10_000, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ),
        sites=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        system=Path("/usr/share/datasets/fashion-mnist"),
    ),
    Entry(
        name="cifar-10",
        label="CIFAR-10",
        folder="cifar-10-batches-bin",
        # The authors publish no checksums of single files; these are the ones TorchVision for Ruby checks.
        train=(
            _batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            _batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            _batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            _batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            _batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ),
        test=(_batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
        sites=("https://www.cs.toronto.edu/~kriz/",),
        archive="cifar-10-binary.tar.gz",
        # The copy is recognised by its labels, because JPEG decoders differ in the last bit of a pixel.
        variants={"8d29100cf30e74baf457f58cd3e9cbcc76102d4b3f427d2baa4d6296a3a4c001": "CIFAR-10 (JPEG)"},
    ),
)
CATALOG: Mapping[str, Entry] = {known.name: known for known in _ENTRIES}
NAMES: tuple[str, ...] = tuple(CATALOG)
# MNIST and Fashion-MNIST have the same file names, counts and shapes: only the bytes tell them apart.
OWNERS = {file.sha256: f"{known.name}'s {file.name}" for known in _ENTRIES for file in known.files}
