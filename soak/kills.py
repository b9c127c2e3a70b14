"""Commands that are killed at random moments, by random signals.

Afterwards the output is not there or whole, no process is left, the same command succeeds, and then no file is left
but those that it is meant to write.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from feta.errors import FetaError
from feta_lab import data as datasets
from feta_lab import networks, store
from soak.tally import Tally

COUNT = 200
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
GONE = 20.0  # seconds in which every process of a command that was killed must have ended
MARK = "FETA_SOAK"  # a variable by which the processes of a command are known


def run(count: int, seed: int) -> Tally:
    tally, draw = Tally("kills"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        dense = place / "dense.safetensors"
        _network(dense)
        kinds = {
            "prune": ["prune", str(dense), "--sparsity", "0.9", "--method", "alps"],
            "train": ["train", "dense-mnist", "--data", "mnist-mini", "--max-epochs", "2"],
        }
        usual = {kind: _whole_time(words, place / "first") for kind, words in kinds.items()}
        for number in range(count):
            kind = list(kinds)[number % len(kinds)]
            how = draw.choice(SIGNALS)
            # Mostly where the work is done: the first half of a short command is imports.
            after = usual[kind] * draw.choice((draw.random(), draw.uniform(0.4, 1.05)))
            problem = _killed(kinds[kind], place / f"{number}", how, after)
            if problem:
                tally.wrong.append(
                    f"{kind}, {how.name} after {after:.3f} s (number {number} of seed {seed}): {problem}"
                )
            tally.tried += 1
    return tally


def _network(path: Path) -> None:
    """A small network that was not trained: what is tested is not its accuracy."""
    data = datasets.load("mnist-mini")
    model = networks.build("30FC-10SM", data.shape, seed=0)
    store.save(
        store.Network(model, store.NetworkInfo("30FC-10SM", data.shape, "mnist-mini", data.normalisation)), path
    )


def _start(words: list[str], place: Path) -> "subprocess.Popen[bytes]":
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "feta", *words, "-o", str(place / "out.safetensors")]
    env = {**os.environ, "TMPDIR": str(place / "tmp"), MARK: str(place), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _whole_time(words: list[str], place: Path) -> float:
    started = time.monotonic()
    with _start(words, place) as process:
        said = process.communicate()[1]
    if process.returncode:
        raise RuntimeError(f"feta {words[0]} must work before it is killed, got {said.decode()[-300:]}")
    return time.monotonic() - started


def _killed(words: list[str], place: Path, how: signal.Signals, after: float) -> str:
    """What is wrong after a kill and after the same command again; nothing where all is right."""
    output = place / "out.safetensors"
    with _start(words, place) as process:
        time.sleep(after)
        process.send_signal(how)
        said = process.communicate()[1]
    if b"Traceback" in said and process.returncode > 0 and how is not signal.SIGINT:
        return f"a traceback: {said.decode()[-200:]}"
    if problem := _broken(output):
        return f"after the kill {problem}"
    until = time.monotonic() + GONE
    while left := _processes(place):
        if time.monotonic() > until:
            return f"processes {left} are left"
        time.sleep(0.05)
    with _start(words, place) as process:
        said = process.communicate()[1]
    if process.returncode:
        return f"the same command again ended with {process.returncode}: {said.decode()[-200:]}"
    if problem := _broken(output) or ("" if output.exists() else "no output"):
        return f"after the second run {problem}"
    # torch's compiler keeps an empty cache there, after runs that were not killed as well.
    found = {str(path.relative_to(place)) for path in place.rglob("*") if "torchinductor_" not in str(path)}
    right = {"feta-records.jsonl", "out.safetensors", "tmp"}
    return "" if found == right else f"files are left or missing: {sorted(found ^ right)}"


def _broken(output: Path) -> str:
    if output.exists():
        try:
            store.load(output)
        except FetaError as error:
            return f"the output is broken: {error}"
    return ""


def _processes(place: Path) -> list[int]:
    """Processes that were started by a command, however far down, and have not ended."""
    mark, found = f"{MARK}={place}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(entry.name)] if state not in "ZX" else []
        except OSError:  # it has just ended, or is not ours to look at
            continue
    return found
