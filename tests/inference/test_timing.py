"""Ways to do the same are timed in turns, and the least counts."""

import pytest

from feta.inference import timing


def test_turns_and_the_least(monkeypatch):
    seconds = {"slow": iter([0.0005] + [0.03] * 20), "quick": iter([0.0005, 0.004, 0.002] + [0.008] * 20)}
    ways = {"slow": lambda: None, "quick": lambda: None}
    names, turns = {way: name for name, way in ways.items()}, []

    def clock(way, repeats):
        turns.append((names[way], repeats))
        return next(seconds[names[way]])

    monkeypatch.setattr(timing, "_seconds", clock)
    found = timing.timed(ways)
    assert found == {"slow": pytest.approx(1e3 * 0.03 / 4), "quick": pytest.approx(1e3 * 0.002 / 4)}
    assert turns[:2] == [("slow", 1), ("quick", 1)]  # how often to repeat: for two milliseconds
    assert turns[2:] == [("slow", 4), ("quick", 4)] * timing.ROUNDS


def test_cold_sweeps_the_caches_before_every_call(monkeypatch):
    monkeypatch.setattr(timing, "CACHE_BYTES", 1000)
    calls = []
    found = timing.timed({"one": lambda: calls.append(1)}, cold=True)
    assert len(calls) == 1 + timing.ROUNDS
    assert 0 < found["one"] < float("inf")
