"""Calling the kernels: their arguments as numbers, and torch's own threads to run them.

The kernels are run by the OpenMP threads that torch has already started: no second pool competes for the cores, and
torch.set_num_threads holds. Where torch has none (a build without OpenMP), one thread does the work.
"""

import ctypes
import functools
from types import ModuleType
from typing import Any

import torch

SMALL = 1 << 15  # multiply-adds below which waking threads costs more than it gives


@functools.cache
def kernels() -> ModuleType | None:
    """The compiled kernels, or None without numba."""
    try:
        from feta.inference import kernels as found
    except ImportError:
        return None
    return found


@functools.cache
def _openmp() -> tuple[Any, int, int] | None:
    """GOMP_parallel, and the addresses of GOMP_barrier and omp_get_thread_num, of the library that torch loaded."""
    try:
        library = ctypes.CDLL(None)
        parallel, *others = (library[name] for name in ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num"))
    except (AttributeError, OSError, TypeError):
        return None
    parallel.argtypes, parallel.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    barrier, number = (ctypes.cast(function, ctypes.c_void_p).value for function in others)
    return parallel, barrier or 0, number or 0


def team_for(work: int) -> int:
    """How many threads a call of `work` multiply-adds should use."""
    if work < SMALL or _openmp() is None:
        return 1
    return torch.get_num_threads()


def run(kernel: Any, numbers: Any, work: int) -> None:
    """Run a kernel on as many threads as its work is worth."""
    team = team_for(work)
    if team == 1:
        numbers[12] = 1
        kernel.ctypes(ctypes.addressof(numbers))
    else:
        parallel(kernel.address, numbers, team)


def parallel(kernel: int, numbers: Any, team: int) -> None:
    """Run a kernel by its address on `team` threads; the last three of its numbers are for the threads."""
    start, barrier, number = _openmp()  # type: ignore[misc]
    numbers[10], numbers[11], numbers[12] = barrier, number, team
    start(kernel, ctypes.addressof(numbers), team, 0)
