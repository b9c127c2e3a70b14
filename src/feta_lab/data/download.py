"""Downloading a data set from its own site, with resumption and checksums.

The bytes of a file collect in a `.part` file. A later try asks only for the bytes that are missing (HTTP
Range). A file that fails its checksum is deleted, and the next site is tried.
"""

import contextlib
import os
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from feta.errors import DataError
from feta.files.atomic import destination, scratch
from feta_lab.data.catalog import DataFile, entry
from feta_lab.data.files import EMBEDDED, cache_dir, path_of, read_file

if sys.platform != "win32":
    import fcntl

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in total if known
Finish = Callable[[Path], None]  # checks or unpacks a complete download, or raises DataError

TIMEOUT_SECONDS = 5.0  # until the answer starts, and between two pieces of it
ATTEMPTS = 5
CHUNK = 1 << 18
SLACK = 1 << 20  # a packed file may be larger than its contents by this much


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Download the files of a data set that are missing, and return the folder they are in.

    `data_dir` receives a folder for the set; without it feta's cache does. `progress` is called with the
    file, the bytes so far and the bytes in total. A file that exists is kept when it has the official
    bytes, and is never overwritten. Raises ConfigError for an unknown name, and DataError when no site
    delivers the file, when a different file is in the way, or when the folder cannot be written.

        fetch("fashion-mnist", Path("datasets"))
    """
    known = entry(name)
    if not known.sites:
        return EMBEDDED
    root = cache_dir() if data_dir is None else data_dir.expanduser()
    folder = root / known.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with destination(root / ".feta-fetch.lock")[0].open("a") as lock:
            if sys.platform != "win32":
                fcntl.flock(lock, fcntl.LOCK_EX)  # a second feta that downloads into this folder waits
            missing = [file for file in known.files if not _is_there(file, folder)]
            if missing and known.archive:
                part, size = root / f"{known.archive}.part", sum(file.size for file in known.files)
                _download(known.sites, part, size, partial(_extract, missing, folder), progress)
                part.unlink()
            else:
                for file in missing:
                    part = folder / f"{file.name}.gz.part"
                    _download(known.sites, part, file.size, partial(_verify, file), progress)
                    os.replace(part, part.with_suffix(""))
    except OSError as error:
        raise DataError(f"{root} cannot be written ({error}); set --data-dir or FETA_CACHE") from error
    return folder


def _is_there(file: DataFile, folder: Path) -> bool:
    path = path_of(file, folder)
    try:
        if there := os.path.isfile(path):
            _verify(file, path)
    except DataError as error:
        raise DataError(f"{error}\n{path} is in the way: move it away and fetch again") from error
    return there


def _verify(file: DataFile, path: Path) -> None:
    got = read_file(file, path).sha256
    if got != file.sha256:
        raise DataError(f"{path}: SHA-256 of the unpacked bytes must be {file.sha256}, got {got}")


def _extract(files: Sequence[DataFile], folder: Path, part: Path) -> None:
    """Move `files` out of a tar.gz into `folder`, all of them or none."""
    sizes = {f"{folder.name}/{file.name}": file.size for file in files}
    with scratch(f".{folder.name}.", folder.parent) as place:
        inside = place / folder.name
        try:
            with tarfile.open(part, "r:gz") as tar:
                wanted = (item for item in tar if item.isreg() and sizes.get(item.name) == item.size)
                tar.extractall(place, wanted, filter="data")
            for file in files:
                _verify(file, inside / file.name)
        except (tarfile.TarError, EOFError, zlib.error, DataError) as error:
            raise DataError(f"{part.stem}: must hold {', '.join(sizes)}: {error}") from error
        for file in files:
            os.replace(inside / file.name, folder / file.name)


def _download(sites: Sequence[str], part: Path, size: int, finish: Finish, progress: Progress | None) -> None:
    """Collect the file in `part` from the first site that delivers it, and finish it."""
    failures = []
    for site in sites:
        url = site + part.stem
        try:
            return _download_from(url, part, size + SLACK, finish, progress)
        except (DataError, OSError, HTTPException, ValueError) as error:
            failures.append(f"  {url}: {str(error) or type(error).__name__}")
    cure = "Get the files elsewhere, put them into a folder, and give that folder as --data-dir"
    raise DataError("\n".join(["The download failed:", *failures, cure]))


def _download_from(url: str, part: Path, most: int, finish: Finish, progress: Progress | None) -> None:
    for _ in range(ATTEMPTS):
        resumed = part.exists()
        try:
            if _append(url, part, most, progress):
                return finish(part)
        except DataError:
            part.unlink()
            # The first bytes may be those of another site or an older file: try once more from zero.
            if not resumed:
                raise
    raise DataError("the connection dropped; the bytes so far are kept, and the next try continues there")


def _append(url: str, part: Path, most: int, progress: Progress | None) -> bool:
    """Request the bytes that `part` lacks, and return whether the file is complete."""
    destination(part)
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "feta", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = _open(Request(url, headers=headers))
    except HTTPError as error:
        error.close()
        if have and error.code == 416:
            return True  # no bytes follow those we have; the checksum decides
        raise
    done = have if response.status == 206 else 0  # a server without Range sends the whole file
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else None
    with response, part.open("ab" if done else "wb") as file:
        for chunk in _chunks(response):
            done += len(chunk)
            if done > most:
                raise DataError(f"sends more than {most} bytes, so it is not the file")
            file.write(chunk)
            if progress is not None:
                progress(part.stem, done, total)
    return total is None or done == total


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the body until it ends or the connection drops."""
    with contextlib.suppress(OSError, HTTPException):
        yield from iter(lambda: response.read(CHUNK), b"")


def _open(request: Request) -> HTTPResponse:
    """Send a request, and raise TimeoutError unless the answer starts within TIMEOUT_SECONDS.

    A socket's own time-out does not cover a silent name server or a host with many silent addresses.
    """
    answer: Future[HTTPResponse] = Future()

    def send() -> None:
        try:
            answer.set_result(urlopen(request, timeout=TIMEOUT_SECONDS))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=send, daemon=True).start()
    return answer.result(timeout=TIMEOUT_SECONDS)
