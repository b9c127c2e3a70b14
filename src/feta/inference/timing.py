"""Milliseconds of several ways to do the same, taken in turns so that a busy moment strikes all alike."""

import math
import time
from collections.abc import Callable, Mapping

import torch

Ways = Mapping[str, Callable[[], object]]
Timer = Callable[[Ways, bool], dict[str, float]]  # ways, whether cold -> milliseconds of each way
BLOCK_SECONDS = 2e-3
ROUNDS, MOST_SECONDS = 7, 3.0
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
    found: dict[str, list[float]] = {name: [] for name in ways}
    end = time.monotonic() + MOST_SECONDS
    while not _settled(found) and (len(min(found.values(), key=len)) < ROUNDS or time.monotonic() < end):
        for name, way in ways.items():
            if broom is not None:
                broom += 1
            found[name].append(1e3 * _seconds(way, repeats[name]) / repeats[name])
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
