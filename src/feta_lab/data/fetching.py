"""`feta data fetch`: a data set from its own site into a folder, checked file by file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from feta.errors import DataError
from feta_lab.data.catalog import Archive, DataFile, Entry, entry
from feta_lab.data.download import DownloadError, Progress, download
from feta_lab.data.files import read_file, spelled
from feta_lab.data.locate import EMBEDDED, cache_dir

if sys.platform != "win32":
    import fcntl

SLACK = 1 << 20  # a wrapper may be this much larger than what it wraps


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a set into its folder in `data_dir` (default: feta's cache); the folder.

    Files that are there and official are kept; a file that is there and is not is an error, never
    overwritten.
    """
    known = entry(name)
    if known.embedded:
        return EMBEDDED
    root = cache_dir() if data_dir is None else data_dir.expanduser()
    try:
        return fetch_entry(known, root, progress)
    except DownloadError as error:
        names = ", ".join(file.name for file in known.files)
        raise DataError(
            f"{error}\nOr get {names} elsewhere and put them into {root / known.folder}"
        ) from error


def fetch_entry(known: Entry, root: Path, progress: Progress | None = None) -> Path:
    """Download `known` into root/folder."""
    folder = root / known.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(root):
            lacking = [file for file in known.files if not _have(file, folder)]
            if lacking and known.archive is not None:
                _fetch_archive(known, known.archive, root, lacking, progress)
            elif lacking:
                for file in lacking:
                    _fetch_file(known, file, folder, progress)
    except OSError as error:
        raise DataError(
            f"{error.filename or root}: cannot be written: {error.strerror or error}; "
            "give another --data-dir or set FETA_CACHE"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # goes only if nothing came: no empty folder is left to wonder about
    return folder


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the folder against another feta that fetches too: it waits, then finds the files there."""
    with (root / ".feta-fetch.lock").open("a") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _have(file: DataFile, folder: Path) -> bool:
    path = spelled(folder, file.name)
    if path is not None:
        try:
            _verify(file, path)
        except DataError as error:
            raise DataError(f"{error}\n{path} is in the way: move it away and fetch again") from error
    return path is not None


def _verify(file: DataFile, path: Path) -> None:
    got = read_file(file, path).sha256
    if got != file.sha256:
        raise DataError(f"{path}: SHA-256 of the unpacked bytes must be {file.sha256}, got {got}")


def _fetch_file(known: Entry, file: DataFile, folder: Path, progress: Progress | None) -> None:
    part = folder / f"{file.name}.gz.part"
    urls = [f"{site}{file.name}.gz" for site in known.sites]
    download(urls, part, file.size + SLACK, partial(_verify, file), progress)
    os.replace(part, folder / f"{file.name}.gz")


def _fetch_archive(
    known: Entry, archive: Archive, root: Path, lacking: list[DataFile], progress: Progress | None
) -> None:
    part = root / f"{archive.name}.part"
    most = sum(file.size for file in known.files) + SLACK
    download(
        [f"{site}{archive.name}" for site in known.sites], part, most, partial(_verify_md5, archive), progress
    )
    unpack(part, known.folder, root / known.folder, lacking)
    part.unlink()


def _verify_md5(archive: Archive, path: Path) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if got != archive.md5:
        raise DataError(f"{path}: MD5 must be {archive.md5}, got {got}")


def unpack(archive: Path, inside: str, folder: Path, files: list[DataFile]) -> None:
    """Take `files` out of the tar's folder `inside`; all or none of them appear in `folder`.

    Members are copied under names of our own and only if they are wanted, regular and of the right
    size, so that no member can write anywhere else.
    """
    wanted = {f"{inside}/{file.name}": file for file in files}
    parts = {file.name: folder / f"{file.name}.part" for file in files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = wanted.get(member.name)
                source = tar.extractfile(member) if file and member.isreg() else None
                if file is None or source is None or member.size != file.size:
                    continue
                with source, parts[file.name].open("wb") as target:
                    shutil.copyfileobj(source, target)
        for file in files:
            read_file(file, parts[file.name])  # the archive's checksum has vouched for the bytes
    except (tarfile.TarError, EOFError, zlib.error, DataError) as error:
        for path in parts.values():
            path.unlink(missing_ok=True)
        raise DataError(f"{archive}: must hold {', '.join(wanted)}: {error}") from error
    for name, path in parts.items():
        os.replace(path, folder / name)
