"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path

from feta.errors import FileError


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside the target and rename over it; on any failure nothing is left behind."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", f".{path.name}.", path.parent, ignore_cleanup_errors=True) as folder:
            part = Path(folder) / path.name
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Fail now, not after the work, when a file cannot be written; leaves nothing behind."""
    folder = Path(path).parent
    # Folders that are missing are made when the file is: until then the nearest one that exists answers.
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    if Path(path).is_dir():
        raise FileError(f"cannot write {path}: it is a folder")
