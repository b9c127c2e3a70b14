"""Download one file: resumed where it broke off, checked before anyone may call it done.

The bytes gather in a `.part` file. What is there from an earlier try is not asked for again (HTTP
Range); what fails its check is thrown away, and the next site is tried.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, urlopen

from feta.errors import DataError

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all if known
Verify = Callable[[Path], object]  # raises DataError on bytes that are not the file's

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
ATTEMPTS = 5
CHUNK = 1 << 18
RANGE_NOT_SATISFIABLE = 416


class DownloadError(DataError):
    """No site gave the file."""


def download(
    urls: Sequence[str], part: Path, most: int, verify: Verify, progress: Progress | None = None
) -> None:
    """Leave verified bytes, at most `most` of them, at `part`."""
    failures = []
    for url in urls:
        try:
            _from_site(url, part, most, verify, progress)
            return
        except (DataError, OSError, HTTPException, ValueError) as error:
            failures.append(f"  {url}: {_reason(error)}")
    raise DownloadError("Download failed:\n" + "\n".join(failures))


def _from_site(url: str, part: Path, most: int, verify: Verify, progress: Progress | None) -> None:
    _need_connection(url)
    for _ in range(ATTEMPTS):
        before = _size(part)
        if _append(url, part, most, progress):
            try:
                verify(part)
                return
            except DataError:
                part.unlink()
                # Bytes of another site or day may lie at the front: once more, from the start.
                if before == 0:
                    raise
        elif _size(part) <= before:
            break
    raise DataError(
        f"the connection dropped; {_size(part)} bytes are kept, and the next try goes on from there"
    )


def _append(url: str, part: Path, most: int, progress: Progress | None) -> bool:
    """Fetch what `part` lacks; whether that is all the server has."""
    have = _size(part)
    headers = {"User-Agent": "feta", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urlopen(Request(url, headers=headers), timeout=READ_SECONDS)
    except HTTPError as error:
        with error:
            if have and error.code == RANGE_NOT_SATISFIABLE:
                return True  # there is nothing after what we have: the check decides
            raise
    with response:
        start = _start(response, part, have)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        done = start
        with part.open("ab" if start else "wb") as file:
            for chunk in _chunks(response):
                done += len(chunk)
                if done > most:
                    break
                file.write(chunk)
                if progress is not None:
                    progress(part.stem, done, total)
    if done > most:
        part.unlink()
        raise DataError(f"sends more than {most} bytes, so it is not the file")
    return total is None or done == total


def _start(response: HTTPResponse, part: Path, have: int) -> int:
    """The offset of the first byte the server sends; a server without Range sends the whole file."""
    if response.status != 206:
        return 0
    sent = response.headers.get("Content-Range", "")
    if not sent.startswith(f"bytes {have}-"):
        part.unlink()  # or every later try would ask for the same and fail alike
        raise DataError(f"must send the bytes from {have} on, sends '{sent}'")
    return have


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """The body up to its end or to where the connection drops; its length tells which."""
    with contextlib.suppress(OSError, HTTPException):
        while chunk := response.read(CHUNK):
            yield chunk


def _need_connection(url: str) -> None:
    """Raise within CONNECT_SECONDS unless the site answers.

    A socket's own time-out covers neither a name server that is silent nor a host with many addresses
    that all are; a thread that is left behind covers both.
    """
    parts = urlsplit(url)
    if parts.scheme in getproxies():
        return  # the proxy connects, not we
    outcome: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()

    def knock() -> None:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
            outcome.put(None)
        except OSError as error:
            outcome.put(error)

    threading.Thread(target=knock, daemon=True).start()
    try:
        error = outcome.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        raise DataError(f"no connection within {CONNECT_SECONDS:g} s") from None
    if error is not None:
        raise error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, URLError):
        return str(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
