"""Records: one JSON line per run, with what is needed to trace and repeat its numbers."""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from feta.errors import FileError

try:
    import fcntl
except ImportError:  # no such locks on this system: there, one run per file
    fcntl = None  # type: ignore[assignment]


def record(kind: str, config: Mapping[str, Any], seed: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A run as data; `environment` says where it ran."""
    return {
        "kind": kind,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": dict(config),
        "seed": seed,
        "metrics": dict(metrics),
        "environment": environment(),
    }


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a record; one write of one line under a lock, so that runs side by side lose none of theirs."""
    content = (json.dumps(line, allow_nan=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed: mending cuts what others write
            _mend(path, handle)
            written = os.write(handle, content)
        finally:
            os.close(handle)
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise FileError(f"cannot add a record to {path}: {error.strerror}") from error


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file; a last line cut short by a kill is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError as error:
        raise FileError(f"cannot read records {path}: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise FileError(f"{path}, line {number}: must be a JSON object, got {error}") from error
        if not isinstance(value, dict):
            raise FileError(f"{path}, line {number}: must be a JSON object, got {value!r}")
        found.append(value)
    return found


def _mend(path: Path, handle: int) -> None:
    """Drop a last line cut short by a kill, or else the next one would run on from it and be lost too."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return
    try:
        json.loads(content[end:])
    except ValueError:
        os.ftruncate(handle, end)
    else:
        os.write(handle, b"\n")


@functools.cache
def environment() -> dict[str, str]:
    """Versions and machine, without its name or paths."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "feta": _version("feta"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "gpu": device,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"


def _commit() -> str:
    """The commit of a source checkout; releases are named by their version."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, perhaps inside somebody else's repository
        return "unknown"
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
