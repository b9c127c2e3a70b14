"""Records: JSON objects in a file, one per line, that runs side by side may add to and a kill cannot spoil."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feta.errors import FileError
from feta.files.atomic import destination

try:
    import fcntl
except ImportError:  # no such locks on this system: there, one run per file
    fcntl = None  # type: ignore[assignment]


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a record to a file, by one write under a lock, so that runs side by side lose none of their records.

    Raises FileError when the file cannot be written, and ValueError for numbers that JSON does not have.
    """
    content = (json.dumps(line, allow_nan=False) + "\n").encode()
    destination(path)
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
        try:
            json.loads(content[end:])
            os.write(handle, b"\n")
        except (ValueError, RecursionError):
            os.ftruncate(handle, end)
