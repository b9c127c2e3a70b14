"""Calling the kernels: their arguments as numbers, and torch's own threads to run them.

The kernels are run by the OpenMP threads that torch has already started: no second pool competes for the cores, and
torch.set_num_threads holds. Where torch has none (a build without OpenMP), one thread does the work. Waking threads
takes from one microsecond to hundreds, as they spin or sleep (OMP_WAIT_POLICY): it is measured once, and small work
is left to one thread.
"""

import ctypes
import functools
import statistics
import time
from types import ModuleType
from typing import Any

import torch

INSIDE = ("GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
NUMBERS = 13  # of a kernel's arguments; the last three are the addresses of these, or zero for one thread
GAIN = 2  # threads must save this many times what waking them costs


@functools.cache
def kernels() -> ModuleType | None:
    """The compiled kernels, or None without numba."""
    try:
        from feta.inference import kernels as found
    except ImportError:
        return None
    return found


@functools.cache
def _openmp() -> tuple[Any, list[int]] | None:
    """GOMP_parallel, and the addresses of what the kernels call inside, of the library that torch loaded."""
    try:
        library = ctypes.CDLL(None)
        start, *inside = (library[name] for name in ("GOMP_parallel", *INSIDE))
    except (AttributeError, OSError, TypeError):
        return None
    start.argtypes, start.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return start, [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in inside]


def team_for(nanoseconds: float) -> int:
    """How many threads a call should use that takes one thread so long."""
    count = torch.get_num_threads()
    if count == 1 or nanoseconds < 1000 or _openmp() is None:
        return 1
    return count if nanoseconds * (1 - 1 / count) > GAIN * _waking(count) else 1


@functools.cache
def _waking(count: int) -> float:
    """Nanoseconds that it takes to have `count` threads do nothing."""
    nothing, times = (ctypes.c_int64 * NUMBERS)(), []
    for _ in range(31):
        started = time.perf_counter_ns()
        parallel(kernels().chain.address, nothing, count)  # type: ignore[union-attr]
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times)


def run(kernel: Any, numbers: Any, nanoseconds: float) -> None:
    """Run a kernel on as many threads as its work is worth."""
    team = team_for(nanoseconds)
    if team == 1:
        kernel.ctypes(ctypes.addressof(numbers))
    else:
        parallel(kernel.address, numbers, team)


def parallel(kernel: int, numbers: Any, team: int) -> None:
    """Run a kernel by its address on `team` threads, or fewer if OpenMP gives fewer."""
    start, inside = _openmp()  # type: ignore[misc]
    numbers[10], numbers[11], numbers[12] = inside
    start(kernel, ctypes.addressof(numbers), team, 0)
