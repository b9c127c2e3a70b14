"""The harness of all experiments: cells in, one record per cell out, written as soon as each is done.

    cell     a dictionary that says what to run; it is the `key` of its record
    record   kind, key, the cell's fields, what `prepare` and `run_one` found, `timed` and `environment`

Records are only ever added, so several commands may share a file. When a cell has several records, the last one
counts. A killed run goes on where it stopped. A cell that cannot be done has a record too, with `accuracy` None,
the `reason` and the kind of `failure`:

    refused   the method or the data said no; final
    budget    stopped after `cell_budget` seconds; run again under a larger budget
    error     something unforeseen was raised, or a file could not be read or written; run again by the next run
    died      its process ended, out of memory for example; run again by the next run

With jobs or a budget, cells run in spawned processes, which can be stopped: a thread cannot promise that. A worker is
kept for many cells, so that imports, data and warm libraries are paid for once and never inside a measured time. A
worker that overruns is ended, a worker that dies is noticed, and the next cell gets a fresh one.
"""

import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch

from feta.errors import ConfigError, FetaError, FileError
from feta.files.atomic import scratch
from feta_lab.records import append, environment, identity, latest, read

Cell = dict[str, Any]
Prepare = Callable[[Cell], Mapping[str, Any]]  # what every record of the cell says, even where it fails
RunOne = Callable[[Cell], Mapping[str, Any]]

PR_SET_PDEATHSIG = 1  # of Linux's prctl
GRACE_SECONDS = 5  # between asking a process to end and ending it


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: the fields of its record, or why there are none."""

    fields: dict[str, Any]
    failure: Literal["", "refused", "error", "budget", "died"] = ""
    reason: str = ""


def nothing(cell: Cell) -> Mapping[str, Any]:
    return {}


def attempt(run_one: RunOne, cell: Cell) -> Outcome:
    """Run a cell here; whatever goes wrong in it becomes data."""
    try:
        fields = dict(run_one(cell))
        json.dumps(fields, allow_nan=False)  # what cannot be recorded is the cell's failure, not the file's
        return Outcome(fields)
    except FetaError as error:
        # Where the place said no, and not the method, it may be put right.
        return Outcome({}, "error" if isinstance(error, FileError) else "refused", str(error))
    except Exception as error:
        return Outcome({}, "error", f"{type(error).__name__}: {error}")


def run_cells(
    kind: str,
    cells: Sequence[Cell],
    run_one: RunOne,
    records: Path,
    *,
    resume: bool = True,
    jobs: int = 1,
    cell_budget: float | None = None,
    prepare: Prepare = nothing,
    tell: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Run the cells that are not in the file yet, and return the record of every cell, in their order.

    kind: the experiment; a record with this kind and the cell as its key is the cell's.
    run_one: returns the fields that a cell's record adds. With jobs or a budget it runs in spawned processes, so
        it must be a function of a module, a functools.partial of one, or a method of an object that can be pickled.
    resume: False runs all cells again.
    jobs: how many cells run at once. Their times do not compare, and `timed` in the record says so.
    cell_budget: seconds after which a cell is stopped.
    prepare: returns fields that every record of the cell has, failed or not. Loading and warming up belong here,
        outside of the budget. An error in it ends the run: no other cell would fare better.
    tell: gets a line when a cell begins, and one when it fails.

    Raises ConfigError if two cells are the same.
    """
    wanted = {identity(kind, cell): cell for cell in cells}
    if len(wanted) < len(cells):
        raise ConfigError(f"cells of {kind} must differ, got {len(cells) - len(wanted)} twice")
    found = latest(read(records)) if resume and records.exists() else {}
    done = {i: line for i, line in found.items() if i in wanted and not _worth_another(line, cell_budget)}
    missing = [i for i in wanted if i not in done]
    todo = [wanted[i] for i in missing]

    def begins(index: int) -> None:
        tell(f"{len(wanted) - len(missing) + index + 1}/{len(wanted)} {label(todo[index])}")

    def here() -> Iterator[tuple[int, Outcome]]:
        for index, cell in enumerate(todo):
            begins(index)
            common = dict(prepare(cell))
            outcome = attempt(run_one, cell)
            yield index, replace(outcome, fields={**common, **outcome.fields})

    elsewhere = run_in_workers(todo, run_one, prepare, jobs=jobs, budget=cell_budget, begins=begins)
    for index, outcome in elsewhere if jobs > 1 or cell_budget is not None else here():
        record = _record(kind, todo[index], outcome, cell_budget, timed=jobs == 1)
        append(records, record)
        done[missing[index]] = record
        if outcome.failure:
            tell(f"{label(todo[index])}: {outcome.reason}")
    return [done[i] for i in wanted]


def label(cell: Cell) -> str:
    """What progress calls a cell: dense-mnist, seed 0, feta, 0.9."""
    names = ("net", "k", "seed", "network", "layer", "rows", "method", "sparsity", "allocation", "recipe", "round")
    words = {"k": "k = ", "seed": "seed ", "network": "network ", "rows": "rows ", "round": "round "}
    said = [f"{words.get(name, '')}{cell[name]}" for name in names if name in cell]
    return ", ".join(said + [f"{name}d" for name in ("refine", "compensate") if cell.get(name)])


def _record(kind: str, cell: Cell, outcome: Outcome, budget: float | None, *, timed: bool) -> dict[str, Any]:
    record = {"kind": kind, "key": cell, **cell, **outcome.fields}
    if outcome.failure:
        record |= {"accuracy": None, "failure": outcome.failure, "reason": outcome.reason}
        record |= {"cell_budget": budget} if outcome.failure == "budget" else {}
    threads = {} if timed else {"threads": "1"}
    return record | {"timed": timed, "environment": environment() | threads}


def _worth_another(record: Mapping[str, Any], budget: float | None) -> bool:
    """Whether a cell that failed may do better now."""
    more = budget is None or budget > record.get("cell_budget", math.inf)
    return more if record.get("failure") == "budget" else record.get("failure") in ("error", "died")


def run_in_workers(
    cells: Sequence[Cell],
    run_one: RunOne,
    prepare: Prepare,
    *,
    jobs: int,
    budget: float | None = None,
    begins: Callable[[int], None] = lambda index: None,
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each cell, with its number, as it is done; `jobs` at a time."""
    waiting = deque(enumerate(cells))
    idle, busy = list[_Worker](), list[_Worker]()
    # One process uses the threads its parent would; several at once would fight over them.
    threads = torch.get_num_threads() if jobs == 1 else 1
    with scratch("feta-cells-", Path(tempfile.gettempdir())) as place:
        try:
            while waiting or busy:
                while waiting and len(busy) < jobs:
                    worker = idle.pop() if idle else _Worker(run_one, prepare, threads, budget, str(place))
                    index, cell = waiting.popleft()
                    begins(index)
                    worker.give(index, cell)
                    busy.append(worker)
                patience = min(worker.deadline for worker in busy) - time.monotonic()
                wait([worker.pipe for worker in busy], None if math.isinf(patience) else max(0.0, patience))
                for worker in list(busy):
                    if (outcome := worker.outcome()) is not None:
                        busy.remove(worker)
                        if worker.usable:
                            idle.append(worker)
                        yield worker.index, outcome
        finally:
            for worker in (*idle, *busy):
                worker.stop()


class _Worker:
    """A process that takes one cell at a time."""

    def __init__(self, run_one: RunOne, prepare: Prepare, threads: int, budget: float | None, place: str) -> None:
        self.budget, self.usable = budget, True
        # Spawned, not forked: a forked process cannot use CUDA, and threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        given = (theirs, run_one, prepare, threads, place)
        self.process = context.Process(target=_serve, args=given, daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def give(self, index: int, cell: Cell) -> None:
        self.index, self.deadline = index, math.inf
        self.common: dict[str, Any] = {}
        with contextlib.suppress(BrokenPipeError):  # it died while it waited: `outcome` will say so
            self.pipe.send(cell)

    def outcome(self) -> Outcome | None:
        """What has become of the cell by now; None while it runs."""
        try:
            while self.pipe.poll():
                kind, value = self.pipe.recv()
                if kind == "unprepared":
                    raise value
                if kind == "done":
                    return Outcome({**self.common, **value.fields}, value.failure, value.reason)
                self.common = value
                if self.budget is not None:
                    self.deadline = time.monotonic() + self.budget
        except (EOFError, ConnectionResetError):
            self.stop()
            return Outcome(self.common, "died", f"its process ended with exit code {self.process.exitcode}")
        if time.monotonic() < self.deadline:
            return None
        self.stop()
        return Outcome(self.common, "budget", f"stopped after its budget of {self.budget:g} s")

    def stop(self) -> None:
        self.usable = False
        self.process.terminate()
        self.process.join(GRACE_SECONDS)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, run_one: RunOne, prepare: Prepare, threads: int, place: str) -> None:
    """The process: take a cell, prepare it, run it, answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _die_with_parent()
    threading.Thread(target=_end_with_parent, args=(place,), daemon=True).start()
    tempfile.tempdir = place
    torch.set_num_threads(threads)
    while True:
        try:
            cell = pipe.recv()
        except EOFError:  # only a parent that was killed lets go of a worker that waits
            shutil.rmtree(place, ignore_errors=True)
            return
        try:
            pipe.send(("ready", dict(prepare(cell))))
            pipe.send(("done", attempt(run_one, cell)))
        except FetaError as error:
            pipe.send(("unprepared", error))
        except Exception as error:
            pipe.send(("unprepared", FetaError(f"cannot prepare {cell}: {type(error).__name__}: {error}")))


def _die_with_parent() -> None:
    """On Linux the system itself ends a worker with its parent, even one that lets no other thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it was gone before
        os._exit(1)


def _end_with_parent(place: str) -> None:
    """A run that was killed leaves no process behind to disturb the times of the next, and no files."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(place, ignore_errors=True)
        os._exit(1)
