"""Jobs of several processes on this machine, over gloo, one thread each."""

import importlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).parent


def start(count: int, task: str, folder: Path, **given: Any) -> list[subprocess.Popen[str]]:
    """Processes that run `task`, module:function in this folder, with (rank, folder, **given)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    torch.save(given, folder / "given.pt")
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / "jobs.py"), task, str(folder)],
            env=os.environ | shared | {"RANK": str(rank), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def finished(processes: list[subprocess.Popen[str]], seconds: float = 600) -> list[tuple[int, str, str]]:
    """The exit code and what was said by each; none of them is left running, should they wait for each other."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *told) for process, told in zip(processes, said, strict=True)]


def run(count: int, task: str, **given: Any) -> list[Any]:
    """What each process of a job returns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, (code, _, told) in enumerate(finished(start(count, task, folder, **given))):
            assert code == 0, f"process {rank}: {told[-3000:]}"
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


@contextmanager
def group() -> Iterator[int]:
    """Inside, this process is in the job that its environment names."""
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    module, _, function = sys.argv[1].partition(":")
    place = Path(sys.argv[2])
    arguments = torch.load(place / "given.pt", weights_only=False)
    with group() as own:
        found = getattr(importlib.import_module(module), function)(own, place, **arguments)
        torch.save(found, place / f"{own}.pt")
