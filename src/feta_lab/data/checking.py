"""`feta data check`: every file of a set read in full, with a verdict for each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feta.errors import DataError
from feta_lab.data.catalog import CLASSES, DataFile, Entry, entry
from feta_lab.data.files import Content, figure_label, read_file, spelled
from feta_lab.data.locate import Location, find, looked_in, not_found

OFFICIAL = "official"
DIFFERS = "differs from the official bytes"


@dataclass(frozen=True)
class FileReport:
    """One file: what it holds, or the first fault in it."""

    path: str
    size: int | None = None  # unpacked bytes
    sha256: str | None = None  # of the unpacked bytes
    checksum: str | None = None  # OFFICIAL or DIFFERS; None if the file could not be read
    images: tuple[int, ...] | None = None  # (n, c, h, w)
    labels: tuple[int, ...] | None = None  # how many of each class
    problem: str | None = None


@dataclass(frozen=True)
class CheckReport:
    """A set: where it is, what figures may call it, and its files."""

    name: str
    label: str
    folder: str
    origin: str
    files: tuple[FileReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every file could be read; a file may still differ from the official bytes."""
        return all(file.problem is None for file in self.files)

    @property
    def official(self) -> bool:
        return all(file.checksum == OFFICIAL for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """The report in numbers, strings and lists, for json.dumps."""
        return {**asdict(self), "ok": self.ok, "official": self.official}


def check(name: str, data_dir: Path | None = None) -> CheckReport:
    """Read every file of a set that is here; faults are in the report, an absent set is a DataError."""
    known = entry(name)
    place = find(name, data_dir)
    if place is None:
        raise DataError(not_found(known, looked_in(name, data_dir)))
    return check_folder(known, place)


def check_folder(known: Entry, place: Location) -> CheckReport:
    """The report on the set at `place`."""
    read = [_examine(file, place.folder) for file in known.files]
    contents = [content for _, content in read if content is not None]
    reports = tuple(report for report, _ in read)
    return CheckReport(known.name, figure_label(known, contents), str(place.folder), place.origin, reports)


def _examine(file: DataFile, folder: Path) -> tuple[FileReport, Content | None]:
    path = spelled(folder, file.name) or folder / file.name
    try:
        content = read_file(file, path)
    except DataError as error:
        return FileReport(str(path), problem=str(error)), None
    labels = content.labels
    report = FileReport(
        str(path),
        size=file.size,
        sha256=content.sha256,
        checksum=OFFICIAL if content.official else DIFFERS,
        images=None if content.images is None else content.images.shape,
        labels=None if labels is None else tuple(np.bincount(labels, minlength=CLASSES).tolist()),
    )
    return report, content
