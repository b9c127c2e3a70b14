"""Ways to do the same are timed in turns, and the least counts."""

import pytest

from feta.inference import timing


def scripted(monkeypatch, **seconds):
    """Ways that take the seconds given, one after the other; what was timed, and how often repeated."""
    ways = {name: lambda name=name: name for name in seconds}
    left, turns = {name: iter(times) for name, times in seconds.items()}, []

    def clock(way, repeats):
        turns.append((way(), repeats))
        return next(left[way()])

    monkeypatch.setattr(timing, "_seconds", clock)
    return ways, turns


def test_turns_and_the_least(monkeypatch):
    slow, quick = [0.0005, *[0.03] * 7], [0.0005, 0.004, 0.002, 0.002, 0.002, 0.008, 0.008, 0.008]
    ways, turns = scripted(monkeypatch, slow=slow, quick=quick)
    assert timing.timed(ways) == {"slow": pytest.approx(1e3 * 0.03 / 4), "quick": pytest.approx(1e3 * 0.002 / 4)}
    assert turns[:2] == [("slow", 1), ("quick", 1)]  # how often to repeat: for two milliseconds
    assert turns[2:] == [("slow", 4), ("quick", 4)] * timing.ROUNDS


def test_more_turns_until_the_least_is_seen_thrice(monkeypatch):
    restless = [0.002, *(0.01 + 0.001 * i for i in range(10)), 0.002, 0.009, 0.00205, 0.0021]
    ways, turns = scripted(monkeypatch, way=restless)
    assert timing.timed(ways) == {"way": pytest.approx(2.0)}
    assert len(turns) == len(restless)


def test_it_ends_on_a_machine_that_never_rests(monkeypatch):
    monkeypatch.setattr(timing, "MOST_SECONDS", 0)
    ways, turns = scripted(monkeypatch, way=[0.002, *(0.01 + 0.001 * i for i in range(50))])
    assert timing.timed(ways) == {"way": pytest.approx(10.0)}
    assert len(turns) == 1 + timing.ROUNDS


def test_cold_sweeps_the_caches_before_every_call(monkeypatch):
    monkeypatch.setattr(timing, "CACHE_BYTES", 1000)
    calls = []
    found = timing.timed({"one": lambda: calls.append(1)}, cold=True)
    assert len(calls) >= 1 + timing.ROUNDS
    assert 0 < found["one"] < float("inf")


class _Card:
    L2_cache_size = 10


def test_recorded_calls_lose_what_the_sweeps_take(monkeypatch):
    """Without a GPU: graphs that take given milliseconds."""
    monkeypatch.setattr(timing.torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(timing.torch.cuda, "get_device_properties", lambda device: _Card)
    swept = []

    def graph(way, broom):
        swept.append(None if broom is None else len(broom))
        took = way()
        return None if took == "never" else lambda: (took or 0) + (0.0 if broom is None else 3.0)

    monkeypatch.setattr(timing, "_graph", graph)
    ways = {"one": lambda: 1.0, "none": lambda: "never", "two": lambda: 2.0}
    forever = float("inf")
    assert timing.recorded(ways) == {"one": 1.0, "none": forever, "two": 2.0}
    assert timing.recorded(ways, True) == {"one": pytest.approx(1.0), "none": forever, "two": pytest.approx(2.0)}
    assert swept == [None] * 3 + [20] * 4
    assert timing.recorded({"none": lambda: "never"}) == {"none": forever}
