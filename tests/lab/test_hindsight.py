"""Advice against records made by hand."""

from __future__ import annotations

import pytest

from feta.lab.hindsight import (
    always,
    best_of,
    by_validation,
    find,
    foretold,
    judge_advice,
    rows_of,
    spreads_off,
    summary,
    times_off,
)

CELL = {"net": "dense-mnist", "seed": 0, "sparsity": 0.9, "device": "cpu"}


def fig2(method: str, accuracy: float | None, prune: float, refine: float | None = None, **more) -> dict:
    stage = {"refine": refine is not None, "refine_seconds": refine or 0.0}
    scores = {"accuracy": accuracy, "validation": accuracy and accuracy + 0.1, "prune_seconds": prune}
    return {**CELL, "method": method, **stage, **scores, **more}


def table1(method: str, before: float, after: float, prune: float, retrain: float, **more) -> dict:
    times = {"prune_seconds": prune, "retrain_seconds": retrain}
    return {**CELL, "method": method, "accuracy": before, "retrained_accuracy": after, **times, **more}


TABLE1 = [table1("threshold", 75.0, 97.5, 0.0, 40.0), table1("feta", 94.0, 97.6, 2.0, 50.0)]
FIG2 = [
    fig2("threshold", 75.0, 0.0),
    fig2("threshold", 97.1, 0.0, 5.0),
    fig2("feta", 94.0, 2.0),
    fig2("feta", 97.3, 2.0, 5.0),
    fig2("net-trim", None, 0.0, failure="budget"),
    fig2("alps", 99.0, 0.0, 1.0, sparsity=0.5),
    fig2("alps", 99.0, 0.0, 1.0, device="cuda"),
    fig2("alps", 99.0, 0.0, 1.0, seed=1),
]
ROWS = rows_of(TABLE1, FIG2, 0.9, "cpu")


def advice(method: str, stage: str, budget: float, **more) -> dict:
    return {**CELL, "budget": budget, "method": method, "stage": stage, "spent": 1.0, **more}


def test_of_a_cell_that_was_run_again_the_last_record_counts():
    again = [
        fig2("feta", 94.0, 2.0),
        fig2("feta", 95.0, 3.0),
        fig2("lobs", 90.0, 1.0),
        fig2("lobs", None, 0.0),
    ]
    assert [(row.method, row.accuracy) for row in rows_of([], again, 0.9, "cpu")] == [("feta", 95.0)]


def test_every_way_is_a_row_once():
    mine = {(row.method, row.stage): (row.accuracy, row.seconds) for row in ROWS if row.seed == 0}
    assert mine == {
        ("threshold", "prune"): (75.0, 0.0),
        ("threshold", "refine"): (97.1, 5.0),
        ("threshold", "retrain"): (97.5, 40.0),
        ("feta", "prune"): (94.0, 2.0),
        ("feta", "refine"): (97.3, 7.0),
        ("feta", "retrain"): (97.6, 52.0),
    }


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1, ("threshold", "prune")),
        (6, ("threshold", "refine")),
        (10, ("feta", "refine")),
        (60, ("feta", "retrain")),
    ],
)
def test_the_best_within_a_budget(budget, expected):
    best = best_of(ROWS, "dense-mnist", 0, budget)
    assert (best.method, best.stage) == expected


@pytest.mark.parametrize(
    ("method", "stage", "budget", "regret", "good"),
    [
        ("feta", "retrain", 60, 0.0, True),
        ("threshold", "retrain", 60, 0.1, True),
        ("feta", "refine", 60, 0.3, False),
        ("threshold", "refine", 10, 0.2, True),  # just so
        ("threshold", "refine", 5.5, 0.0, False),  # with planning it ends too late
    ],
)
def test_verdicts(method, stage, budget, regret, good):
    verdict = judge_advice(advice(method, stage, budget), ROWS)
    assert verdict.regret == pytest.approx(regret)
    assert verdict.good is good


def test_no_verdict_without_rows():
    assert judge_advice(advice("lobs", "prune", 60), ROWS) is None
    assert judge_advice(advice("feta", "prune", 60) | {"seed": 7}, ROWS) is None


def test_what_was_carried_out_counts_instead_of_the_row():
    done = {"accuracy": 96.0, "validation": 96.1, "seconds": 28.0}
    verdict = judge_advice(advice("feta", "retrain", 30, carried_out=done), ROWS)
    assert verdict.in_time
    assert verdict.regret == pytest.approx(97.3 - 96.0)
    better = judge_advice(advice("feta", "retrain", 30, carried_out=done | {"accuracy": 97.9}), ROWS)
    assert better.regret == 0


def test_the_same_advice_every_time():
    asked = [advice("feta", "prune", budget) for budget in (3, 60)]
    short, long = always("feta", "refine", ROWS, asked)
    assert (short.advised.method, short.advised.stage) == ("threshold", "prune")  # no time for it
    assert (long.advised.method, long.advised.stage) == ("feta", "refine")
    assert summary([short, long]) == {
        "advices": 2,
        "good": 0.0,
        "in_time": 1.0,
        "regret": pytest.approx((19.0 + 0.3) / 2),
    }


def test_the_best_that_validation_data_can_choose():
    """Of feta and thresholding, refined, validation prefers the one that is 0.2 points worse on the test half."""
    cells = [*FIG2[:3], fig2("feta", 97.3, 2.0, 5.0, validation=96.0)]
    (verdict,) = by_validation(rows_of([], cells, 0.9, "cpu"), [advice("feta", "prune", 60)])
    assert (verdict.advised.method, verdict.advised.stage, verdict.advised.accuracy) == (
        "threshold",
        "refine",
        97.1,
    )
    assert verdict.regret == pytest.approx(0.2)
    assert verdict.good


def test_how_far_off_what_was_expected_is():
    def expected(stage: str, value: float, seconds: float, *, fits: bool = True) -> dict:
        guess = {"accuracy": {"value": value, "spread": 0.5}, "seconds": {"value": seconds}}
        return {"method": "feta", "stage": stage, "fits": fits, **guess}

    weighed = [
        expected("prune", 95.1, 1.0),
        expected("refine", 97.4, 14.0),
        expected("refine", 90.0, 1.0, fits=False),
        expected("retrain", 97.0, 52.0),  # its row has no validation accuracy
    ]
    pairs = list(foretold([advice("feta", "prune", 60, candidates=weighed)], ROWS))
    assert [candidate for candidate, _ in pairs] == [weighed[0], weighed[1], weighed[3]]
    assert spreads_off(pairs) == pytest.approx([2.0, 0.0])
    assert times_off(pairs) == pytest.approx([0.5, 2.0, 1.0])
    short = foretold([advice("feta", "prune", 10, candidates=weighed)], ROWS)
    assert [row.stage for _, row in short] == ["prune", "refine"]  # retraining was cut short


def test_a_row_is_found_by_all_its_names():
    assert find(ROWS, "dense-mnist", 0, "feta", "refine").accuracy == 97.3
    assert find(ROWS, "dense-mnist", 1, "feta", "refine") is None
