"""The planner's choice, from measurements made by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from feta.lab.extrapolation import Estimate
from feta.lab.planning import NEAR, Advice, Candidate, Measured, Task, advise, chance, forecast, promising

TASK = Task(rows=60_000, dense=98.0, images=5000, look_seconds=0.01)
# A minute on all rows; refining takes 18 s more, an epoch of retraining 6 s.
KNOWN = Measured(
    "alps",
    prune_seconds=((2000, 2.0), (8000, 8.0)),
    prune=((2000, 92.0), (8000, 93.0)),
    refine=((20, 94.0), (80, 96.0)),
    refine_rate=1e-4,
    retrain=((62, 94.0), (250, 96.0)),
    retrain_rate=1e-4,
)


def candidate(
    accuracy: float, seconds: float, *, spread: float = 0.1, fits: bool = True, **names
) -> Candidate:
    named = {"method": "alps", "stage": "prune", **names}
    return Candidate(accuracy=Estimate(accuracy, spread), seconds=Estimate(seconds, 0.0), fits=fits, **named)


def of(found: list[Candidate], stage: str) -> Candidate:
    return next(one for one in found if one.stage == stage)


# From measurements to candidates


def test_only_what_was_measured_is_offered():
    assert [one.stage for one in forecast(KNOWN, TASK, 1e6)] == ["prune", "refine", "retrain"]
    assert [one.stage for one in forecast(replace(KNOWN, refine=(), retrain=()), TASK, 1e6)] == ["prune"]


def test_seconds_are_those_of_the_whole_work():
    found = forecast(KNOWN, TASK, 1e6)
    assert of(found, "prune").seconds.value == pytest.approx(60)
    assert of(found, "refine").seconds.value == pytest.approx(60 + 3 * 60_000 * 1e-4)
    epoch = 60_000 * 1e-4 + 4 * 0.01
    assert of(found, "retrain").seconds.value == pytest.approx(60 + 12 * epoch)  # never recovers


def test_more_is_expected_of_more_work():
    found = forecast(KNOWN, TASK, 1e6)
    assert 93.0 < of(found, "prune").accuracy.value < 94.0
    assert all(96.0 < of(found, stage).accuracy.value < 98.0 for stage in ("refine", "retrain"))


@pytest.mark.parametrize(
    ("left", "fitting"),
    [
        (1e6, {"prune", "refine", "retrain"}),
        (85.0, {"prune", "retrain"}),
        (55.0, set()),
    ],
)
def test_what_fits(left, fitting):
    assert {one.stage for one in forecast(KNOWN, TASK, left) if one.fits} == fitting


def test_retraining_is_cut_short_by_the_budget():
    quick = replace(KNOWN, prune_seconds=((60_000, 1.0),))
    full, cut = (of(forecast(quick, TASK, left), "retrain") for left in (1e6, 20.0))
    assert cut.limit == pytest.approx(20 - 1 - 0.1)
    assert cut.seconds.value + cut.seconds.spread <= 20 + 1e-9
    assert cut.accuracy.value < full.accuracy.value


def test_a_network_that_lost_nothing_takes_no_step():
    same = replace(KNOWN, prune=((2000, 97.9), (8000, 97.95)), retrain=((62, 97.0), (250, 97.2)))
    found = forecast(same, TASK, 1e6)
    assert of(found, "retrain").accuracy == of(found, "prune").accuracy
    assert of(found, "retrain").seconds.value == of(found, "prune").seconds.value


def test_a_trial_that_came_back_already_is_believed():
    quick = replace(KNOWN, prune_seconds=((60_000, 1.0),), retrain=((62, 97.0), (250, 98.3)))
    found = of(forecast(quick, TASK, 1e6), "retrain")
    assert found.accuracy.value == 98.3
    assert found.seconds.value < 3


def test_few_images_are_less_sure():
    few, many = (of(forecast(KNOWN, replace(TASK, images=n), 1e6), "prune") for n in (500, 5000))
    assert few.accuracy.spread > many.accuracy.spread > 0


# From candidates to advice


def test_the_most_accurate_that_fits():
    best = candidate(97.0, 20, method="feta")
    found = advise([candidate(95.0, 1), best, candidate(99.0, 999, fits=False)])
    assert found.choice is best
    assert [one.accuracy.value for one in found.candidates] == [99.0, 97.0, 95.0]


def test_of_two_as_good_the_quicker():
    quick = candidate(96.95, 2)
    assert advise([candidate(97.0, 200), quick]).choice is quick
    slow = candidate(97.2, 200)
    assert advise([slow, quick]).choice is slow


def test_where_nothing_fits_the_quickest_is_given_and_says_so():
    found = advise([candidate(97.0, 20, fits=False), candidate(60.0, 1, fits=False)])
    assert (found.choice.seconds.value, found.choice.fits, found.chance) == (1, False, 0.0)
    assert found.word == "a guess"


def test_nothing_to_compare_with_is_sure():
    assert advise([candidate(60.0, 1)]).chance == pytest.approx(1)


def test_the_chance_of_two_is_that_of_their_difference():
    one, other = candidate(97.0, 1, spread=0.3), candidate(97.1, 1, spread=0.4)
    exact = (1 + math.erf((NEAR - 0.1) / 0.5 / math.sqrt(2))) / 2
    assert chance(one, [other]) == pytest.approx(exact, abs=0.02)


def test_the_chance_of_many_is_how_often_it_happens():
    draw = random.Random(0)
    one = candidate(97.0, 1, spread=0.3)
    others = [candidate(96.9, 1, spread=0.2), candidate(97.2, 1, spread=0.3), candidate(96.0, 1, spread=1.0)]

    def happens() -> bool:
        mine, *theirs = (draw.gauss(c.accuracy.value, c.accuracy.spread) for c in (one, *others))
        return max(theirs) <= mine + NEAR

    often = sum(happens() for _ in range(20_000)) / 20_000
    assert chance(one, others) == pytest.approx(often, abs=0.02)


def test_a_doubt_that_all_share_does_not_change_their_order():
    accuracy = Estimate(97.0, 1.0, shared=1.0)
    one = replace(candidate(97.0, 1, stage="refine"), accuracy=accuracy)
    same = replace(one, accuracy=replace(accuracy, value=97.1))
    assert chance(one, [same]) == 1
    assert chance(one, [replace(same, stage="retrain")]) == pytest.approx(0.53, abs=0.03)


@pytest.mark.parametrize(("other", "expected"), [(97.1, 1.0), (97.3, 0.0)])
def test_the_chance_without_doubt(other, expected):
    assert chance(candidate(97.0, 1, spread=0.0), [candidate(other, 1, spread=0.0)]) == expected


@pytest.mark.parametrize(("value", "word"), [(0.9, "sure"), (0.8, "sure"), (0.6, "likely"), (0.2, "a guess")])
def test_words(value, word):
    assert Advice(candidate(97.0, 1), value, ()).word == word


def test_only_what_may_be_the_best_is_tried_again():
    found = promising(
        [
            candidate(97.0, 1, method="feta"),
            candidate(96.0, 1, method="lobs", spread=0.5),  # may be
            candidate(96.0, 1, method="wanda", spread=0.1),  # cannot be
            candidate(99.0, 999, method="alps", fits=False),
        ]
    )
    assert found == {("feta", "prune"), ("lobs", "prune")}
