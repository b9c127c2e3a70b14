"""Milliseconds of several ways to do the same, taken in turns so that a busy moment strikes all alike."""

import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Ways = Mapping[str, Callable[[], object]]
Timer = Callable[[Ways], dict[str, float]]  # milliseconds of each way
ROUNDS, BLOCK_SECONDS = 7, 2e-3


def timed(ways: Ways, rounds: int = ROUNDS) -> dict[str, float]:
    """The median over rounds in which each way runs for about two milliseconds."""
    repeats = {}
    for name, way in ways.items():
        way()  # compiles, plans, and fetches into the caches
        repeats[name] = max(1, math.ceil(BLOCK_SECONDS / max(_seconds(way, 1), 1e-7)))
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(1e3 * _seconds(way, repeats[name]) / repeats[name])
    return {name: statistics.median(times) for name, times in found.items()}


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
