"""One file of a data set: found under any of its spellings, read, checked and hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feta.errors import DataError
from feta_lab.data.catalog import CIFAR_ROW, DataFile, Entry, owner
from feta_lab.data.formats import Bytes, check_labels, parse_cifar, parse_idx, read_raw

ALTERED = "altered"


@dataclass(frozen=True, eq=False)
class Content:
    """What a file holds: images (n, c, h, w), labels (n,), or both."""

    file: DataFile
    sha256: str  # of the unpacked bytes
    images: Bytes | None
    labels: Bytes | None

    @property
    def official(self) -> bool:
        return self.sha256 == self.file.sha256


def spelled(folder: Path, name: str) -> Path | None:
    """The file in `folder`: plain or .gz, and with the dot that some unpackers put before idx."""
    dotted = name.replace("-idx", ".idx")
    spellings = dict.fromkeys((name, f"{name}.gz", dotted, f"{dotted}.gz"))
    # os.path, because Path.is_file raises where a folder may not be entered.
    return next((folder / spelling for spelling in spellings if os.path.isfile(folder / spelling)), None)


def read_file(file: DataFile, path: Path) -> Content:
    """Read and check one file; DataError names it and the offset of the first fault."""
    raw = read_raw(path, file.size)
    images: Bytes | None = None
    labels: Bytes | None = None
    if file.layout == "cifar":
        images, labels = parse_cifar(raw, file.shape[0])
        check_labels(labels, raw.where, first=0, stride=CIFAR_ROW)
    elif len(file.shape) == 1:
        labels = parse_idx(raw, file.shape)
        check_labels(labels, raw.where, first=file.size - len(labels), stride=1)
    else:
        images = parse_idx(raw, file.shape)[:, None]
    content = Content(file, hashlib.sha256(raw.values.data).hexdigest(), images, labels)
    _refuse_another(content, path)
    return content


def _refuse_another(content: Content, path: Path) -> None:
    """MNIST and Fashion-MNIST differ in nothing but their bytes: names, counts and shapes are the same."""
    known = None if content.official else owner(content.sha256)
    if known is not None:
        entry, file = known
        raise DataError(
            f"{path}: must be {content.file.name}, but its bytes are those of {entry.name}'s {file.name}"
        )


def figure_label(entry: Entry, contents: Sequence[Content]) -> str:
    """What a figure must call these bytes: official, a known variant, or altered."""
    for content in contents:
        if content.labels is not None:
            variant = entry.variants.get(hashlib.sha256(content.labels.tobytes()).hexdigest())
            if variant is not None:
                return variant
    return entry.label if all(content.official for content in contents) else f"{entry.label} ({ALTERED})"
