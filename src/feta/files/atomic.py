"""Files that appear whole or not at all, and only where nothing or another file is.

What is written lies in a folder `.NAME.XXXXXXXX.part` beside its place until it is whole. Its writer holds a lock on
that folder, and the operating system lets go of the lock when the writer ends, however it ends. So whoever writes to
the same place next knows which of these folders belong to nobody any more, and removes them.
"""

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from feta.errors import FileError

try:
    import fcntl
except ImportError:  # no such locks on this system: there, what a killed run leaves stays
    fcntl = None  # type: ignore[assignment]

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link that leads in a circle",
}


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write beside the target and rename over it; on any failure nothing is left behind."""
    with replacing(path) as part, open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: str | os.PathLike[str], *, folder: bool = False) -> Iterator[Path]:
    """A place to write a file, or a folder, in; when the block ends well it is moved to `path`, at once and whole.

    A link stays, and what it leads to is replaced. What is replaced hands on its owner and its mode.
    Raises FileError where it cannot be written.
    """
    try:
        target, before = destination(path, folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch(_start(target), target.parent) as place:
            part = place / target.name
            yield part
            _make_readable(part, place)
            if before is not None:
                with suppress(OSError, AttributeError):  # only root may, and not on every system
                    os.chown(part, before.st_uid, before.st_gid)
                os.chmod(part, stat.S_IMODE(before.st_mode))
            os.replace(part, target)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def _make_readable(part: Path, place: Path) -> None:
    """Give what was written the mode of any new file: safetensors' writer leaves its files to their owner alone."""
    fresh = place / ("mode" if part.name != "mode" else "other")
    fresh.touch()
    mode = stat.S_IMODE(fresh.stat().st_mode)
    for file in part.rglob("*") if part.is_dir() else [part]:
        if file.is_file() and not file.is_symlink():
            os.chmod(file, mode)


def check_writable(path: str | os.PathLike[str], *, folder: bool = False) -> None:
    """Fail now, not after the work, when a file, or a folder, cannot be written; leaves nothing behind.

    It also removes what killed writers left there, because a run that goes on may have nothing more to write.
    """
    try:
        target, before = destination(path, folder)
        _sweep(_start(target), target.parent)
        # Folders that are missing are made when the file is: until then the nearest one that exists answers.
        nearest = next(place for place in target.parents if place.exists())
        with tempfile.TemporaryFile(dir=nearest):
            pass
        if before is not None and not os.access(target, os.W_OK):
            raise FileError(f"cannot write {path}: it is read-only; choose another name or make it writable")
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def destination(path: str | os.PathLike[str], folder: bool = False) -> tuple[Path, os.stat_result | None]:
    """Where links lead, and what is there. Raises FileError for anything but a file, or a folder where one is meant.

    Opening a pipe may wait for ever, and a device that is replaced is lost to the whole system.
    """
    try:
        target = Path(os.path.realpath(path))
        before = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):  # what is in the way says so when folders are made
        return target, None
    except (OSError, ValueError) as error:  # a name too long, or with a zero byte
        raise FileError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    kind = stat.S_IFMT(before.st_mode)
    if kind != (stat.S_IFDIR if folder else stat.S_IFREG):
        what = KINDS.get(kind, "a file" if kind == stat.S_IFREG else "neither a file nor a folder")
        raise FileError(f"cannot write {path}: it is {what}; choose another name")
    return target, before


@contextmanager
def scratch(start: str, parent: Path) -> Iterator[Path]:
    """A folder whose name begins with `start`, ours as long as the block runs, however it ends.

    Those of the same beginning whose makers were killed are removed.
    """
    _sweep(start, parent)
    place, lock = _locked(start, parent)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_left(path: str | os.PathLike[str]) -> None:
    """Remove what writers to this place left beside it when they were killed."""
    with suppress(ValueError):  # no name that a file can have
        target = Path(os.path.realpath(path))
        _sweep(_start(target), target.parent)


def _start(target: Path) -> str:
    name = os.fsencode(target.name)  # which has 255 bytes at the most
    return f".{target.name if len(name) <= 200 else hashlib.sha256(name).hexdigest()}."


def _sweep(start: str, parent: Path) -> None:
    mine = re.compile(re.escape(start) + r"\w{8}\.part", re.ASCII)
    with suppress(OSError):  # a folder that cannot be listed may still be written to
        for left in [entry.path for entry in os.scandir(parent) if mine.fullmatch(entry.name)]:
            _remove_if_left(left)


def _locked(start: str, parent: Path) -> tuple[Path, int | None]:
    while True:
        place = Path(tempfile.mkdtemp(".part", start, parent))
        if fcntl is None:
            return place, None
        with suppress(FileNotFoundError):  # another writer took it for left over before it was locked: once more
            lock = os.open(place, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if place.exists():
                return place, lock
            os.close(lock)


def _remove_if_left(folder: str) -> None:
    if fcntl is None:
        return
    with suppress(OSError):  # somebody else's, or another run removes it now
        lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused as long as its writer lives
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
