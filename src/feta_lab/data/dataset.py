"""Data sets in memory: `load` reads one, and `check` reports on each of its files.

normalised pixel = (pixel / 255 - mean) / std,   mean and std per channel of the training images
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from feta.errors import DataError
from feta_lab.data.catalog import CLASSES, Entry, entry
from feta_lab.data.download import Progress, fetch
from feta_lab.data.files import Content, path_of, read_file, require

FACTS = ("size", "sha256", "checksum", "images", "labels", "problem")  # what a report says of a file


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, on the CPU."""

    images: Tensor  # (n, c, h, w), uint8
    labels: Tensor  # (n,), int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Self:
        """Return a copy of the given rows, in the given order."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of pixel / 255, one value per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: Tensor) -> Self:
        """Compute the normalisation of uint8 images (n, c, h, w), with exact sums.

        Raises DataError when all pixels of a channel are equal.

            Normalisation.of(data.train.images).mean
        """
        values, moments = torch.arange(256), []
        for channel in images.unbind(1):
            counts = torch.bincount(channel.reshape(-1), minlength=256)
            n, total, squares = (int((counts * powers).sum()) for powers in (values**0, values, values**2))
            spread = n * squares - total * total  # n^2 times the variance, in whole numbers
            if spread == 0:
                raise DataError("Normalisation.of must get pixels that vary in every channel, got a constant channel")
            moments.append((total / n / 255, math.sqrt(spread) / n / 255))
        return cls(*zip(*moments, strict=True))

    def apply(self, images: Tensor, device: torch.device | str) -> Tensor:
        """Return the normalised images in float32 on `device`, and leave `images` as they are."""
        # Moving the bytes first takes a quarter of the traffic that moving float32 would.
        scaled = images.to(device).to(torch.float32, copy=True).div_(255)
        mean, std = torch.tensor([self.mean, self.std], dtype=torch.float32, device=device)
        return scaled.sub_(mean[:, None, None]).div_(std[:, None, None])


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set that is ready for training and evaluation."""

    name: str
    label: str  # the name in figures
    train: Split
    validation: Split
    test: Split
    normalisation: Normalisation
    classes: int
    source: str  # the folder it was read from

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


def load(
    name: str, data_dir: Path | None = None, *, download: bool = True, progress: Progress | None = None
) -> DataSet:
    """Read a data set into memory, and download it first when it is nowhere on this machine.

    `name` is one of NAMES. `data_dir` is a folder to search instead of all other places; nothing is
    downloaded then. `download=False` forbids downloads. `progress` is called with the file, the bytes so
    far and the bytes in total. Returns a DataSet; a fixed half of the test set is its validation split.
    Raises ConfigError for an unknown name and DataError for a set that is missing or damaged.

        digits = load("mnist-mini")
    """
    try:
        folder = require(name, data_dir).folder
    except DataError as missing:
        if data_dir is not None or not download:
            raise
        try:
            folder = fetch(name, progress=progress)
        except DataError as error:
            raise DataError(f"{missing}\n{error}") from error
    return read_set(entry(name), folder)


def read_set(known: Entry, folder: Path) -> DataSet:
    """Read every file of a data set from `folder`."""
    contents = [read_file(file, path_of(file, folder)) for file in known.files]
    train, held_out = _split(contents[: len(known.train)]), _split(contents[len(known.train) :])
    validation, test = (held_out.take(rows) for rows in halves(len(held_out)))
    label, normalisation = _label(known, contents), Normalisation.of(train.images)
    return DataSet(known.name, label, train, validation, test, normalisation, CLASSES, str(folder))


def halves(count: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a test set used for validation and those used for testing; they never change."""
    # NumPy guarantees the raw PCG64 stream for good, but not the order that `permutation` gives.
    order = np.argsort(np.random.PCG64(0).random_raw(count), kind="stable")
    return torch.from_numpy(order[: count // 2]), torch.from_numpy(order[count // 2 :])


def check(name: str, data_dir: Path | None = None) -> dict[str, Any]:
    """Read every file of a data set on this machine and report what each holds, or what is wrong with it.

    `data_dir` is a folder to search instead of all other places. Returns a report for json.dumps: `ok`
    says whether every file can be read, `official` whether all have the official bytes. Raises ConfigError
    for an unknown name and DataError when the set is missing; a damaged file is only reported.

        check("mnist-mini")["official"]
    """
    known, place = entry(name), require(name, data_dir)
    reports, contents = [], []
    for file in known.files:
        path = path_of(file, place.folder)
        report = {"path": str(path), **dict.fromkeys(FACTS)}
        try:
            contents.append(read_file(file, path))
            report |= _facts(contents[-1])
        except DataError as error:
            report["problem"] = str(error)
        reports.append(report)
    found = {"name": name, "label": _label(known, contents), "folder": str(place.folder), "origin": place.origin}
    official = all(report["checksum"] == "official" for report in reports)
    return {**found, "files": reports, "ok": len(contents) == len(reports), "official": official}


def _split(contents: Sequence[Content]) -> Split:
    images = [content.images for content in contents if content.images is not None]
    labels = [content.labels.astype(np.int64) for content in contents if content.labels is not None]
    return Split(torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)))


def _label(known: Entry, contents: Sequence[Content]) -> str:
    """The name that figures must use for these bytes: the set's own, a known variant's, or "altered"."""
    labels = [content.labels for content in contents if content.labels is not None]
    digests = {hashlib.sha256(values.tobytes()).hexdigest() for values in labels}
    for variant in digests & known.variants.keys():
        return known.variants[variant]
    return known.label if all(content.official for content in contents) else f"{known.label} (altered)"


def _facts(content: Content) -> dict[str, Any]:
    return {
        "size": content.size,
        "sha256": content.sha256,
        "checksum": "official" if content.official else "differs from the official bytes",
        "images": None if content.images is None else list(content.images.shape),
        "labels": None if content.labels is None else np.bincount(content.labels, minlength=CLASSES).tolist(),
    }
