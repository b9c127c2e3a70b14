"""Jobs of several processes on this machine, over gloo, one thread each.

They are forked from a process that imports torch once for all jobs of a test run.
"""

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).parent
WAIT = timedelta(seconds=240)
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["job_tasks", "spread_tasks"])


def start(count: int, task: str, folder: Path, **given: Any) -> list[BaseProcess]:
    """Processes that run `task`, module:function in this folder, with (rank, folder, **given)."""
    shared = {"WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    # The process that is forked finds its modules by its environment alone, which is that of its start.
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    torch.save(given, folder / "given.pt")
    before = dict(os.environ)
    os.environ.update(shared | {"PYTHONPATH": path})
    try:
        processes = []
        for rank in range(count):
            environment = {**os.environ, "RANK": str(rank)}
            processes.append(FORKED.Process(target=_take_part, args=(environment, task, folder), daemon=True))
            processes[-1].start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return processes


def _take_part(environment: dict[str, str], task: str, folder: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    for stream, kind in ((sys.stdout, "out"), (sys.stderr, "err")):
        with (folder / f"{environment['RANK']}.{kind}").open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.register(signal.SIGUSR1)
    module, _, function = task.partition(":")
    arguments = torch.load(folder / "given.pt", weights_only=False)
    own, count = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    # Who waits for longer than this says where, in an error of torch's.
    dist.init_process_group("gloo", store=_store(own, count, folder), rank=own, world_size=count, timeout=WAIT)
    try:
        found = getattr(importlib.import_module(module), function)(own, folder, **arguments)
        torch.save(found, folder / f"{own}.pt")
    finally:
        dist.destroy_process_group()


def _store(rank: int, count: int, folder: Path) -> dist.Store:
    """What the processes of a job meet at. The first takes a port that no other job can have, and says which."""
    told = folder / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False)
        (folder / "port.part").write_text(str(store.port))
        (folder / "port.part").rename(told)
        return store
    until = time.monotonic() + WAIT.total_seconds()
    while not told.exists():
        if time.monotonic() > until:
            raise TimeoutError("the first process told no port")
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(told.read_text()), count, is_master=False)


def finished(processes: list[BaseProcess], folder: Path, seconds: float = 600) -> list[tuple[int | None, str]]:
    """The exit code and the errors of each; none of them is left running, should they wait for each other."""
    until = time.monotonic() + seconds
    try:
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        assert not any(process.is_alive() for process in processes), _where_they_are(processes, folder, seconds)
    finally:
        for process in processes:
            process.kill()
    return [(process.exitcode, _said(folder, rank)) for rank, process in enumerate(processes)]


def _said(folder: Path, rank: int) -> str:
    path = folder / f"{rank}.err"
    return path.read_text() if path.exists() else ""


def _where_they_are(processes: list[BaseProcess], folder: Path, seconds: float) -> str:
    """What every process that has not ended was doing, and how the others ended."""
    alive = {rank: process.pid for rank, process in enumerate(processes) if process.is_alive()}
    for pid in alive.values():
        os.kill(pid or 0, signal.SIGUSR1)
    time.sleep(2)
    told = [f"process {rank}: {_said(folder, rank)[-4000:]}" for rank in range(len(processes))]
    return "\n".join([f"not finished after {seconds} seconds", *told])


def run(count: int, task: str, **given: Any) -> list[Any]:
    """What each process of a job returns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, (code, told) in enumerate(finished(start(count, task, folder, **given), folder)):
            assert code == 0, f"process {rank}: {told[-3000:]}"
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]
