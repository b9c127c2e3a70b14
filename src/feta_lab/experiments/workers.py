"""Work in spawned processes that can be stopped: what a thread or a callback cannot promise.

A worker is kept for many cells, so that imports, data and warm libraries are paid for once and never inside a
measured time. A cell is prepared first; its budget starts after that. A worker that overruns is ended, a worker
that dies is noticed, and the next cell gets a fresh one.
"""

import contextlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch

from feta.errors import FetaError, FileError

Cell = dict[str, Any]
Prepare = Callable[[Cell], Mapping[str, Any]]  # what every record of the cell says, even where it fails
RunOne = Callable[[Cell], Mapping[str, Any]]

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
    with tempfile.TemporaryDirectory(prefix="feta-cells-", ignore_cleanup_errors=True) as scratch:
        try:
            while waiting or busy:
                while waiting and len(busy) < jobs:
                    worker = idle.pop() if idle else _Worker(run_one, prepare, threads, budget, scratch)
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

    def __init__(self, run_one: RunOne, prepare: Prepare, threads: int, budget: float | None, scratch: str) -> None:
        self.budget, self.usable = budget, True
        # Spawned, not forked: a forked process cannot use CUDA, and threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        given = (theirs, run_one, prepare, threads, scratch)
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


def _serve(pipe: Connection, run_one: RunOne, prepare: Prepare, threads: int, scratch: str) -> None:
    """The process: take a cell, prepare it, run it, answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    tempfile.tempdir = scratch
    torch.set_num_threads(threads)
    while True:
        try:
            cell = pipe.recv()
        except EOFError:  # only a parent that was killed lets go of a worker that waits
            shutil.rmtree(scratch, ignore_errors=True)
            return
        try:
            pipe.send(("ready", dict(prepare(cell))))
            pipe.send(("done", attempt(run_one, cell)))
        except FetaError as error:
            pipe.send(("unprepared", error))
        except Exception as error:
            pipe.send(("unprepared", FetaError(f"cannot prepare {cell}: {type(error).__name__}: {error}")))


def _end_with_parent(scratch: str) -> None:
    """A run that was killed leaves no process behind to disturb the times of the next, and no files."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)
