"""Where a data set is: --data-dir alone if given, else FETA_DATA, the system's folder, feta's cache.

A folder given by --data-dir or FETA_DATA holds a folder per set, or is itself the set's folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feta_lab.data.catalog import CATALOG, Entry, entry
from feta_lab.data.files import spelled

EMBEDDED = Path(__file__).resolve().parents[1] / "embedded"


@dataclass(frozen=True)
class Location:
    """A folder where a data set is or could be."""

    folder: Path
    origin: str  # why it is looked at: --data-dir, FETA_DATA, ...
    missing: tuple[str, ...]  # the files it lacks

    @property
    def found(self) -> bool:
        return not self.missing

    def __str__(self) -> str:
        state = "found" if self.found else f"lacks {', '.join(self.missing)}"
        if not os.path.isdir(self.folder):
            state = "no such folder"
        return f"{self.origin}: {self.folder} ({state})"


def find(name: str, data_dir: Path | None = None) -> Location | None:
    """The first place that holds every file of the set, without reading them; None if no place does."""
    return next((place for place in looked_in(name, data_dir) if place.found), None)


def looked_in(name: str, data_dir: Path | None = None) -> list[Location]:
    """The places in the order in which they are searched."""
    known = entry(name)
    if known.embedded:
        return [_look(known, EMBEDDED, "embedded in feta")]
    if data_dir is not None:
        return [_best(known, data_dir.expanduser(), "--data-dir")]
    places = []
    if chosen := os.environ.get("FETA_DATA"):
        places.append(_best(known, Path(chosen).expanduser(), "FETA_DATA"))
    if known.system is not None:
        places.append(_look(known, known.system, "Debian's dataset package"))
    return [*places, _look(known, cache_dir() / known.folder, "feta's cache")]


def cache_dir() -> Path:
    """FETA_CACHE, or feta's folder in the platform's cache."""
    if chosen := os.environ.get("FETA_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "feta"


def not_found(known: Entry, places: Sequence[Location]) -> str:
    """What was looked for, where, and what would cure it."""
    looked = "\n".join(f"  {place}" for place in places)
    return (
        f"data set '{known.name}' was not found. Looked in:\n{looked}\n"
        f"Put {', '.join(file.name for file in known.files)} (plain or .gz) into one of these folders, "
        f"or give --data-dir or set FETA_DATA to a folder that holds {known.folder}/, "
        f"or run `feta data fetch {known.name}` where there is a network. "
        "The data set 'mnist-mini' is always there."
    )


def _look(known: Entry, folder: Path, origin: str) -> Location:
    missing = tuple(file.name for file in known.files if spelled(folder, file.name) is None)
    return Location(folder, origin, missing)


def _best(known: Entry, root: Path, origin: str) -> Location:
    """The set's folder inside `root`, or `root` itself if more of the files lie there."""
    folders = [root / known.folder]
    # MNIST and Fashion-MNIST name their files alike: a folder that bears another set's name is that set's.
    if root.name not in {other.folder for other in CATALOG.values()} - {known.folder}:
        folders.append(root)
    return min((_look(known, folder, origin) for folder in folders), key=lambda place: len(place.missing))
