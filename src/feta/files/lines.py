"""Records: JSON objects in a file, one per line, that runs side by side may add to and a kill cannot spoil."""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from feta.errors import FileError
from feta.files.atomic import destination

try:
    import fcntl
except ImportError:  # no such locks on this system: there, one run per file
    fcntl = None  # type: ignore[assignment]


def check_lines(path: Path) -> None:
    """Raise FileError for a file that holds anything but records: adding one would spoil it, or cut its end."""
    destination(path)
    with suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as file:
        line = file.read(2)
        if line == b'{"':  # a file of something else may be one long line
            line += file.readline()
        if not b'{"'.startswith(line[:2]) or (line.endswith(b"\n") and not _is_json(line)):
            raise FileError(f"{path} must be a file of records that feta has written, got something else")


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a record to a file, by one write under a lock, so that runs side by side lose none of their records.

    Raises FileError when the file cannot be written or holds anything else, and ValueError for numbers that JSON
    does not have.
    """
    content = (json.dumps(line, allow_nan=False) + "\n").encode()
    check_lines(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: mending would cut what others write
            _mend(path, file.fileno())
            written = os.write(file.fileno(), content)
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise FileError(f"cannot add a record to {path}: {error.strerror}") from error


def _mend(path: Path, handle: int) -> None:
    """Drop a last line that a kill cut short: the next line would run on from it and be lost too."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        if _is_json(content[end:]):
            os.write(handle, b"\n")
        else:
            os.ftruncate(handle, end)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
