"""Records: one JSON line per run, with what is needed to trace and repeat its numbers.

    kind          what made it: table1, fig2, bench, train, prune ...
    key           an object that names the cell, with every setting that could change its numbers
    environment   versions, the machine, and the commit of the code

Kind and key together are the identity of a cell: they serve writing, resuming and the page.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from feta.errors import FileError
from feta.files.lines import append as append
from feta.files.plain import object_from_json, tamed

Record = Mapping[str, Any]


def record(kind: str, config: Mapping[str, Any], seed: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A single run as a record; its configuration and seed are its key."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"kind": kind, "key": {**config, "seed": seed}, "time": time, "config": dict(config), "seed": seed}
    return {**about, "metrics": dict(metrics), "environment": environment()}


def identity(kind: str, key: Mapping[str, Any]) -> str:
    """Kind and key as one text, which is the same for the same cell whatever the order of the key's fields."""
    return json.dumps([kind, key], sort_keys=True)


def latest(records: Iterable[Record]) -> dict[str, Any]:
    """The last record of every cell by its identity; records without a kind and a key are left out."""
    return {identity(r["kind"], r["key"]): r for r in records if "kind" in r and "key" in r}


def groups(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records with the same values under `names`, in order of appearance."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for one in records:
        found.setdefault(tuple(one[name] for name in names), []).append(one)
    return found


def summary(records: Iterable[Record], name: str) -> float | None:
    """A field over the records that have it: the median of seconds, the mean of anything else; None for none."""
    found = [record[name] for record in records if record.get(name) is not None]
    values: list[float] = [statistics.mean(one) if isinstance(one, list) else one for one in found]
    if not values:
        return None
    return statistics.median(values) if name.endswith("seconds") else statistics.mean(values)


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file, without a last line that a kill cut short.

    Raises FileError when the file cannot be read, or when another line is not a JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError as error:
        raise FileError(f"cannot read records {path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            value = object_from_json(line)
        except ValueError as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise FileError(f"{path}, line {number}: must be a JSON object, got {tamed(error)}") from error
        records.append(value)
    return records


@functools.cache
def environment() -> dict[str, str]:
    """Versions and machine, without its name or paths."""
    return {
        "feta": _version("feta-prune"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "source"


def _commit() -> str:
    """The commit of a source checkout, with a hash of what was changed since: 0123456789ab-dirty-89abcdef.

    Installed code has no commit of its own; its version says what it is.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, perhaps inside somebody else's repository
        return "unknown"

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout

    try:
        commit = git("rev-parse", "--short=12", "HEAD").decode().strip()
        # The results change while records are added to them; they are not the code that made them.
        changed = git("diff", "--no-ext-diff", "--no-color", "HEAD", "--", ".", ":(exclude)results")
        added = git("ls-files", "-z", "--others", "--exclude-standard", "--", "*.py").decode().split("\0")
        changed += b"".join(name.encode() + (root / name).read_bytes() for name in sorted(filter(None, added)))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty-{hashlib.sha256(changed).hexdigest()[:8]}" if changed else commit


def _processor() -> str:
    with contextlib.suppress(OSError):
        if found := re.search(r"(?m)^model name\s*:\s*(.*?)\s*$", Path("/proc/cpuinfo").read_text()):
            return found[1]
    return platform.processor() or "unknown"
