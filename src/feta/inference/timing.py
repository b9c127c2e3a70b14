"""Milliseconds of several ways to do the same, taken in turns so that a busy moment strikes all alike."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

from feta.tuning.recorder import recording

Ways = Mapping[str, Callable[[], object]]
Timer = Callable[[Ways, bool], dict[str, float]]  # ways, whether cold -> milliseconds of each way
BLOCK_SECONDS = 2e-3
ROUNDS, MOST_SECONDS = 7, 3.0
RECORDED = 50  # calls in a graph at most
AGREEING, NEAR = 3, 1.05
CACHE_BYTES = 32 << 20  # what a larger model has left in the caches when a layer's turn comes again: nothing


def timed(ways: Ways, cold: bool = False) -> dict[str, float]:
    """The least over rounds in which each way runs for about two milliseconds: what else goes on only adds.

    On a busy machine there are more rounds, until three of each way are within 5 % of its least.

    cold: as a layer of a large model runs, whose weights come from memory; each call follows a sweep of the caches.
    """
    repeats = {}
    for name, way in ways.items():
        way()  # compiles, and plans
        repeats[name] = 1 if cold else max(1, math.ceil(BLOCK_SECONDS / max(_seconds(way, 1), 1e-7)))
    broom = torch.zeros(2 * CACHE_BYTES, dtype=torch.uint8) if cold else None

    def turn(name: str) -> float:
        if broom is not None:
            broom.add_(1)
        return 1e3 * _seconds(ways[name], repeats[name]) / repeats[name]

    return _least({name: partial(turn, name) for name in ways})


def recorded(ways: Ways, cold: bool = False) -> dict[str, float]:
    """The same of launches recorded as a CUDA graph, by the GPU's own clock: without the time it takes to launch.

    A way that cannot be recorded takes forever. Cold: a sweep of the GPU's cache is recorded before every call, and
    what the sweeps take alone is subtracted.
    """
    device = torch.cuda.current_device()
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", CACHE_BYTES)
    broom = torch.zeros(2 * cache, dtype=torch.uint8, device=device) if cold else None
    sweeps: Ways = {"": lambda: None} if cold else {}
    graphs = {name: _graph(way, broom) for name, way in {**sweeps, **ways}.items()}
    ms = _least({name: graph for name, graph in graphs.items() if graph is not None})
    sweep = ms.pop("", 0.0)
    return {name: max(ms[name] - sweep, 1e-6) if name in ms else math.inf for name in ways}


def _graph(way: Callable[[], object], broom: torch.Tensor | None) -> Callable[[], float] | None:
    """Milliseconds of a call in a replay of many, or None where launches cannot be recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            way()  # compiles, and plans
    torch.cuda.current_stream().wait_stream(side)
    repeats = min(RECORDED, math.ceil(BLOCK_SECONDS / max(_seconds(way, 1), 1e-7)))
    try:
        with recording() as graph:
            for _ in range(repeats):
                if broom is not None:
                    broom.zero_()
                way()
    except RuntimeError:
        return None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def turn() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repeats

    return turn


def _least(turns: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The least milliseconds of each, taken in turns until they settle."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    end = time.monotonic() + MOST_SECONDS
    while not _settled(found) and (len(min(found.values(), key=len)) < ROUNDS or time.monotonic() < end):
        for name, turn in turns.items():
            found[name].append(turn())
    return {name: min(times) for name, times in found.items()}


def _settled(found: Mapping[str, list[float]]) -> bool:
    enough = all(len(times) >= ROUNDS for times in found.values())
    return enough and all(sorted(times)[:AGREEING][-1] <= NEAR * min(times) for times in found.values())


def _seconds(way: Callable[[], object], repeats: int) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(repeats):
        way()
    _wait()
    return time.perf_counter() - started


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
