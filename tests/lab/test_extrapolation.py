"""The laws: exact on what follows them, careful with what does not."""

from __future__ import annotations

import math

import pytest

from feta.errors import ConfigError
from feta.lab.durations import duration, parse_duration
from feta.lab.extrapolation import Estimate, Shrink, line, settle

LAW = Shrink(start=60.0, ceiling=98.0, power=0.4)


def on_the_law(steps: float, s0: float = 3.0) -> tuple[float, float]:
    return steps, 98.0 - 38.0 * (1 + steps / s0) ** -0.4


# Time


def test_a_line_is_continued():
    found = line([(100, 1.2), (400, 1.8)], 2000)
    assert found.value == pytest.approx(1.0 + 0.002 * 2000)
    assert found.spread > 0


def test_time_that_fell_is_not_continued_below_what_was_measured():
    assert line([(100, 2.0), (400, 1.0)], 4000).value == 1.0


def test_time_grows_no_faster_than_the_rows():
    assert line([(100, 0.0), (400, 4.0)], 4000).value <= 40.0
    assert line([(300, 0.0), (400, 4.0)], 4000).value == 40.0


def test_one_time_lies_between_constant_and_proportional():
    found = line([(100, 1.0)], 1000)
    assert found.value - 2 * found.spread <= 1.1
    assert found.value + 2 * found.spread >= 9.9


def test_all_rows_measured_is_the_answer():
    assert line([(100, 1.0), (1000, 5.0)], 1000).value == 5.0
    assert settle([(100, 80.0), (1000, 90.0)], 1000, 95.0) == Estimate(90.0, 0.0)


def test_estimates_add_up():
    assert Estimate(1.0, 3.0) + Estimate(2.0, 4.0) == Estimate(3.0, 5.0)


# Accuracy over rows


def test_what_few_rows_cost_falls_with_their_number():
    points = [(n, 90.0 - 2000 / n) for n in (500, 2000)]
    assert settle(points, 60_000, 95.0).value == pytest.approx(90.0 - 2000 / 60_000)


@pytest.mark.parametrize(
    ("points", "expected"), [([(500, 80.0), (2000, 79.0)], 79.0), ([(500, 80.0), (2000, 94.0)], 95.0)]
)
def test_more_rows_do_no_harm_and_no_wonders(points, expected):
    assert settle(points, 60_000, 95.0).value == expected


def test_accuracy_above_the_dense_networks_is_kept():
    assert settle([(500, 95.0), (2000, 96.0)], 60_000, 95.5).value == 96.0


# Accuracy over steps


@pytest.mark.parametrize("s0", [0.1, 3.0, 80.0])
def test_points_on_the_law_give_the_law(s0):
    points = [on_the_law(steps, s0) for steps in (20, 80)]
    found = LAW.at(points, 1800)
    assert found.value == pytest.approx(on_the_law(1800, s0)[1])
    # Both points say the same: what is left of the doubt is that of the power.
    assert found.spread == pytest.approx((98 - found.value) * math.log(1800 / 80) * 0.1)


def test_points_that_disagree_widen_the_spread():
    on, off = on_the_law(20), (20.0, 70.0)
    sure, unsure = (LAW.at([first, on_the_law(80)], 1800).spread for first in (on, off))
    assert unsure > sure


def test_a_point_without_gain_says_little():
    found = LAW.at([(5.0, 60.0), on_the_law(80)], 1800)
    left = 98 - found.value
    assert found.own == pytest.approx(left)
    assert found.spread == pytest.approx(math.hypot(found.own, found.shared))


def test_steps_to_an_accuracy_are_those_at_which_it_is_reached():
    steps = LAW.steps_to([on_the_law(80)], 97.0)
    assert on_the_law(steps)[1] == pytest.approx(97.0)


@pytest.mark.parametrize(
    ("start", "point", "goal", "steps"),
    [
        (97.5, (80, 97.6), 97.0, 0.0),  # there before the first step
        (60.0, (80, 60.0), 97.0, math.inf),  # no better for 80 steps
        (60.0, (80, 55.0), 97.0, math.inf),
        (60.0, (80, 90.0), 98.0, math.inf),  # the ceiling itself
        (60.0, (80, 99.0), 97.0, 80.0),  # beyond the ceiling: at the latest then
    ],
)
def test_steps_at_the_ends(start, point, goal, steps):
    assert Shrink(start, 98.0, 0.4).steps_to([point], goal) == steps


@pytest.mark.parametrize(
    ("point", "expected"),
    [((80, 99.0), 99.0), ((80, 60.0), 60.0), ((80, 55.0), 60.0), ((2000, 90.0), 90.0)],
    ids=["above the ceiling", "no gain", "a loss", "all steps taken"],
)
def test_accuracy_at_the_ends(point, expected):
    assert LAW.at([point], 1800).value == expected


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("5min", 300), ("1h", 3600), ("1.5h", 5400), ("1h30m", 5400), (" 2 m ", 120)],
)
def test_times_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "0s", "5ms", "5 minutes", "m5", "1e3s", "nan", "infs"])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match=r"--budget must be a time > 0 such as 30s, 5m or 1h, got '"):
        parse_duration(text, "--budget")


@pytest.mark.parametrize(("seconds", "text"), [(30, "30 s"), (300, "5.0 min"), (7200, "2.0 h")])
def test_and_written(seconds, text):
    assert duration(seconds) == text
