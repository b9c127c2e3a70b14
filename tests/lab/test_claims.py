"""Verdicts: every outcome of every claim, on records made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from handmade import everywhere, fig2, k_cells, layer_cells, table1

from feta_lab import paper
from feta_lab.claims import judge_claims
from feta_lab.claims.accuracy import (
    feta_is_most_accurate,
    gains_are_larger_in_dense,
    published_feta,
    rivals_are_inconsistent,
)
from feta_lab.claims.depth import accuracy_falls_with_depth, fit_exponential, fit_line, loss_is_exponential
from feta_lab.claims.dimension import dimension_predicts_better, larger_k_is_less_robust, safe_sparsity
from feta_lab.claims.finding import overall
from feta_lab.claims.retraining import threshold_is_cheapest
from feta_lab.claims.speed import feta_is_faster_than_lobs
from feta_lab.results import Results, Source

SHARES = (0.5, 0.7, 0.9)


class Dice:
    """No luck at all: the middle of every range."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


def pruned(
    accuracies: Mapping[str, Mapping[str, float | Sequence[float]]], **fields: Any
) -> list[dict[str, Any]]:
    """net -> method -> accuracy, of one seed or of several."""
    records = []
    for net, methods in accuracies.items():
        for method, values in methods.items():
            for seed, value in enumerate([values] if isinstance(values, float | int) else values):
                cell = {
                    "method": method,
                    "seed": seed,
                    "sparsity": 0.9,
                    "accuracy": value,
                    "dense_accuracy": 98.0,
                }
                records.append(everywhere(net, refine=False, prune_seconds=1.0, **cell) | fields)
    return records


def retrained(
    times: Mapping[str, Mapping[str, Sequence[float] | None]], **fields: Any
) -> list[dict[str, Any]]:
    """net -> method -> total seconds per seed, a tenth of it for pruning; None: did not recover."""
    records = []
    for net, methods in times.items():
        for method, totals in methods.items():
            for seed, total in enumerate([50.0] if totals is None else totals):
                halves = {"prune_seconds": 0.1 * total, "retrain_seconds": 0.9 * total}
                cell = {
                    "method": method,
                    "seed": seed,
                    "sparsity": 0.9,
                    "accuracy": 80.0,
                    "dense_accuracy": 98.0,
                }
                records.append(everywhere(net, recovered=totals is not None, **cell, **halves) | fields)
    return records


def test_one_verdict_from_many_answers():
    assert overall([]) == "not measured"
    assert overall(["yes", "yes"]) == "holds"
    assert overall(["no", "no"]) == "does not hold"
    assert overall(["yes", "no"]) == overall(["mixed"]) == overall(["mixed", "yes"]) == "depends"


# Table 1


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({"dense-mnist": {"threshold": [3, 4], "lobs": [9, 9], "feta": [5, 5]}}, "holds"),
        ({"dense-mnist": {"threshold": [3, 4], "feta": [2, 2]}}, "does not hold"),
        ({"dense-mnist": {"threshold": [3, 4], "feta": [3.5, 3.6]}}, "depends"),  # one seed each
        (
            {"dense-mnist": {"threshold": [3], "lobs": [9]}, "conv-mnist": {"threshold": [3], "lobs": [1]}},
            "depends",
        ),
        ({"dense-mnist": {"threshold": [3], "lobs": None}}, "holds"),  # the only one that arrived
        ({"dense-mnist": {"threshold": None, "lobs": [9]}}, "does not hold"),
        ({"dense-mnist": {"threshold": None, "lobs": None}}, "not measured"),
        ({"dense-mnist": {"threshold": [3]}}, "not measured"),
        ({}, "not measured"),
    ],
)
def test_thresholding_is_cheapest(times, verdict):
    finding = threshold_is_cheapest(retrained(times))
    assert finding.verdict == verdict
    assert len(finding.rows) == (0 if verdict == "not measured" else len(times))


def test_the_paper_s_rivals_are_told_from_today_s():
    finding = threshold_is_cheapest(
        retrained(
            {
                "dense-mnist": {"threshold": [10], "lobs": [20], "alps": [5]},
                "dense-cifar": {"threshold": None, "lobs": None},
            }
        )
    )
    assert finding.verdict == "does not hold"
    assert "in 0 of 1 network; against the paper's own rivals alone in 1 of 1" in finding.answer
    assert "No method came back to the dense accuracy in every seed in dense-cifar" in finding.answer
    # 10 s = 1 + 9, 5 s = 0.5 + 4.5
    assert "thresholding prunes in 1.0 s and retrains for 9.0 s" in finding.why
    assert "saves 4.5 s of retraining" in finding.why


def test_only_the_seeds_both_have_are_compared():
    """alps has the lowest mean by seeds that thresholding lacks; on the shared one it is slower."""
    records = retrained({"dense-mnist": {"threshold": [3.0], "alps": [4.0, 0.1, 0.1]}})
    assert threshold_is_cheapest(records).verdict == "holds"


def test_every_trained_network_counts_by_itself_as_well():
    records = retrained({"dense-mnist": {"threshold": [3, 9, 5], "alps": [4, 4, 5.5]}})
    records[2] |= {"recovered": False}  # threshold's third seed; alps has that one to itself
    answer = threshold_is_cheapest(
        records + retrained({"conv-mnist": {"threshold": None, "alps": None}})
    ).answer
    assert "cheapest in 1 of the 3 trained networks that any method brought back (4 were tried)" in answer


def test_times_of_crowded_machines_do_not_count():
    records = retrained({"dense-mnist": {"threshold": [3], "lobs": [9]}}, timed=False)
    assert threshold_is_cheapest(records).verdict == "not measured"


# Figure 2


@pytest.mark.parametrize(
    ("accuracies", "verdict", "words"),
    [
        ({"a": {"feta": 95.0, "alps": 94.0}, "b": {"feta": 90.0, "lobs": 80.0}}, "holds", "2 of 2 networks"),
        ({"a": {"feta": 95.0, "alps": 95.08}}, "holds", "within 0.1 points of the highest in 1 more"),
        ({"a": {"feta": 95.0, "alps": 96.0}}, "does not hold", "0 of 1 network"),
        (
            {"a": {"feta": 95.0, "alps": 96.0}, "b": {"feta": 90.0, "alps": 80.0}},
            "depends",
            "−1.00 to +10.00",
        ),
        ({"a": {"feta": 95.0, "feta:quality=best": 97.0}}, "not measured", "another method"),
        ({"a": {"alps": 95.0}}, "not measured", "another method"),
    ],
)
def test_feta_is_the_most_accurate(accuracies, verdict, words):
    finding = feta_is_most_accurate(pruned(accuracies))
    assert finding.verdict == verdict
    assert words in finding.answer


def test_a_mean_is_taken_over_shared_seeds():
    records = pruned({"a": {"feta": [95.0, 50.0], "alps": [94.0]}})
    assert feta_is_most_accurate(records).rows[0][1:5] == (95.0, "alps", 94.0, 1.0)


def test_the_reason_is_in_the_layers():
    records = pruned({"a": {"feta": 95.0, "alps": 94.0}})
    for record, error in zip(records, ([0.1, 0.3], [0.4, None]), strict=True):
        record["relative_error"] = error
    why = feta_is_most_accurate(records).why
    assert "by 0.20 on average" in why
    assert "by 0.40" in why
    assert "1 of 1 runs" in why


def test_feta_as_published_meets_the_paper_s_rivals_only():
    label = "feta:solver=svrg+debias=false"
    finding = published_feta(pruned({"a": {label: 90.0, "feta": 95.0, "alps": 94.0, "lobs": 85.0}}))
    assert finding is not None
    assert (finding.verdict, finding.rows[0][2]) == ("holds", "lobs")
    assert published_feta(pruned({"a": {"feta": 95.0, "lobs": 85.0}})) is None


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [((1.0, 8.0), "holds"), ((1.0, 3.0), "depends"), ((3.0, 1.0), "does not hold")],
)
def test_feta_is_faster_than_lobs(seconds, verdict):
    records = pruned({"dense-mnist": {"feta": [90.0] * 3, "lobs": [80.0] * 3}})
    for record in records:
        record["prune_seconds"] = seconds[record["method"] == "lobs"]
    records[0]["prune_seconds"] = 1e6  # one stalled run does not move a median
    finding = feta_is_faster_than_lobs(records)
    assert finding.verdict == verdict
    assert "took 3.0 min" in finding.why  # LOBS in the paper's table
    assert finding.rows[0][3] == pytest.approx(seconds[1] / seconds[0], abs=0.01)


def test_speed_needs_timed_cells():
    assert (
        feta_is_faster_than_lobs(pruned({"a": {"feta": 9.0, "lobs": 9.0}}, timed=False)).verdict
        == "not measured"
    )


STEADY = {"a": {"threshold": 70.0, "corenet": 80.0}, "b": {"threshold": 70.0, "corenet": 69.95}}
ERRATIC = {"a": {"threshold": 70.0, "corenet": 80.0}, "b": {"threshold": 70.0, "corenet": 60.0}}


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        (ERRATIC, "holds"),
        (STEADY, "does not hold"),
        ({net: {**cells, "net-trim": 75.0} for net, cells in ERRATIC.items()}, "depends"),
        ({"a": ERRATIC["a"]}, "not measured"),
        # Worse on average only: a seed that is better makes it no steady loss.
        ({**ERRATIC, "b": {"threshold": [70.0, 70.0], "corenet": [60.0, 70.5]}}, "does not hold"),
    ],
)
def test_rivals_are_inconsistent(accuracies, verdict):
    assert rivals_are_inconsistent(pruned(accuracies)).verdict == verdict


@pytest.mark.parametrize(
    ("conv", "verdict"), [(90.5, "holds"), (99.0, "does not hold"), (97.0, "depends"), (None, "not measured")]
)
def test_gains_are_larger_in_dense(conv, verdict):
    """A gain of 7 points in the dense network against that in the conv one."""
    cells = {"dense-mnist": {"threshold": 90.0, "feta": 97.0}, "conv-mnist": {"threshold": 90.0}}
    if conv is not None:
        cells["conv-mnist"]["feta"] = conv
    finding = gains_are_larger_in_dense(pruned(cells))
    assert finding.verdict == verdict
    if conv == 90.5:
        assert finding.rows == (("mnist", 7.0, 0.5, 8.0, 8.0),)
        assert "Thresholding loses 8.0 points" in finding.why


def test_a_network_on_two_devices_has_two_cases():
    cells = {"dense-mnist": {"threshold": 90.0, "feta": 97.0}}
    records = pruned(cells, device="cpu") + pruned(cells, device="cuda")
    records += pruned({"conv-mnist": {"threshold": 97.0, "feta": 97.5}})
    finding = gains_are_larger_in_dense(records)
    assert (finding.verdict, [row[0] for row in finding.rows]) == ("holds", ["mnist", "mnist"])


# Figure 3


def layered(
    net: str, losses: Sequence[float], dimensions: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """Layers first to last with their loss at 90 %, a straight line from zero at 50 %."""
    return [
        everywhere(
            net,
            seed=0,
            layer=f"l{depth}",
            depth=depth,
            layers=len(losses),
            sparsity=share,
            dense_accuracy=90.0,
            accuracy=90.0 - lost * (share - 0.5) / 0.4,
            intrinsic_dimension=dimensions[depth - 1] if dimensions else None,
        )
        for depth, lost in enumerate(losses, start=1)
        for share in SHARES
    ]


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((9, 8, 7, 6, 5, 4), "holds"),
        ((4, 5, 6, 7, 8, 9), "does not hold"),
        ((9, 8, 7, 6), "depends"),  # in order, but four layers cannot exclude chance
        ((9, 3, 8, 4, 7, 5), "depends"),
        ((0.1, 0.2, 0.3, 0.4), "not measured"),  # nothing is lost
        ((9, 8), "not measured"),
    ],
)
def test_accuracy_falls_with_depth(losses, verdict):
    finding = accuracy_falls_with_depth(layered("conv-cifar", losses))
    assert finding.verdict == verdict
    if verdict == "holds":
        assert [row[1:3] for row in finding.rows] == [(70.0, 1.0), (90.0, 1.0)]


def test_two_networks_that_disagree():
    records = layered("conv-cifar", (9, 8, 7, 6, 5, 4)) + layered("conv-mnist", (4, 5, 6, 7, 8, 9))
    finding = accuracy_falls_with_depth(records)
    assert finding.verdict == "depends"
    assert "conv-mnist: mean rank correlation −1.00" in finding.answer


def test_a_fall_that_chance_explains_decides_nothing():
    """Four layers, the wrong way round: their interval holds every order."""
    assert accuracy_falls_with_depth(layered("conv-mnist", (3, 4, 5, 4))).verdict == "depends"


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([0.5 * 2.0**r for r in range(6)][::-1], "holds"),
        ([2.0 + 3.0 * r for r in range(6)][::-1], "does not hold"),
        ([0.5 * 2.0**r for r in range(6)], "does not hold"),  # exponential the other way
        ([3.0, 2.0, 1.0], "not measured"),
        ([79.0 * 0.99**r for r in range(6)], "not measured"),  # at chance: nothing left to lose
    ],
)
def test_loss_is_exponential(losses, verdict):
    records = [r for r in layered("conv-cifar", losses) if r["sparsity"] != 0.7]
    assert loss_is_exponential(records).verdict == verdict


def test_exponential_in_one_network_only():
    records = layered("conv-cifar", [0.5 * 2.0**r for r in range(6)][::-1])
    records += layered("conv-mnist", [2.0 + 3.0 * r for r in range(6)][::-1])
    assert loss_is_exponential(records).verdict == "depends"


def test_fits_recover_what_they_fit():
    x = np.arange(6.0)
    base, explained = fit_exponential(x, 3 * 1.7**x)
    assert base == pytest.approx(1.7, rel=2e-3)
    assert explained == pytest.approx(1, abs=1e-4)
    assert fit_line(x, 4 - 2 * x) == pytest.approx(1)
    assert fit_exponential(x, 4 - 2 * x)[1] < 0.9


@pytest.mark.parametrize(("slope", "verdict"), [(0.03, "holds"), (-0.01, "does not hold")])
def test_larger_k_is_less_robust(slope, verdict):
    assert larger_k_is_less_robust(k_cells(Dice(), slope)).verdict == verdict


def test_k_without_a_clear_trend():
    """The loss rises with k in three of five networks and falls in two."""
    records = k_cells(Dice(), 0.03, networks=1)
    for number in range(1, 5):
        more = k_cells(Dice(), 0.03 if number < 3 else -0.02, networks=1)
        records += [record | {"network": number} for record in more]
    assert larger_k_is_less_robust(records).verdict == "depends"


def test_more_to_lose_is_not_less_robust():
    """Points lost rise with k, but only as the dense accuracy does: every network loses a fifth of it."""
    records = [
        {
            "net": "conv-cifar",
            "k": k,
            "network": number,
            "sparsity": 0.9,
            "dense_accuracy": 40 + 0.1 * k,
            "accuracy": (0.8 + 0.01 * (number % 2)) * (40 + 0.1 * k),
        }
        for k in range(50, 400, 50)
        for number in range(10)
    ]
    finding = larger_k_is_less_robust(records)
    assert finding.verdict == "depends"
    assert "points lost +0.9" in finding.answer


def test_k_needs_more_than_one_value():
    one = [record for record in k_cells(Dice()) if record["k"] == 50]
    assert larger_k_is_less_robust(one).verdict == "not measured"
    assert larger_k_is_less_robust([record | {"accuracy": None} for record in one]).verdict == "not measured"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({0.0: 0.0, 0.5: 0.5, 0.9: 2.5}, 0.6),  # crosses 1 a quarter of the way
        ({0.5: 0.2, 0.9: 0.9}, 0.9),
        ({0.5: 2.0, 0.9: 0.0}, 0.25),  # the first crossing counts, whatever comes after
        ({0.0: 1.5, 0.5: 0.0}, 0.0),
    ],
)
def test_safe_sparsity(losses, expected):
    assert safe_sparsity(losses) == pytest.approx(expected)


LOSSES = (4.0, 20.0, 8.0, 12.0, 3.0, 16.0, 2.0, 10.0)


@pytest.mark.parametrize(
    ("dimensions", "losses", "verdict"),
    [
        (LOSSES, LOSSES, "holds"),  # more dimensions, more loss; depth has nothing to do with it
        ((4, 1, 3, 2, 5, 1, 6, 2), LOSSES, "does not hold"),
        (range(8, 0, -1), range(9, 1, -1), "does not hold"),  # as good as depth is not better
        ((9, 7, 8, 5, 6, 3, 4, 2), (9, 7, 8, 6, 5, 3, 4, 2), "depends"),  # ahead, but not surely
        # Depth is wrong and the dimension less so: still no prediction.
        ((4, 3, 5, 2, 6, 1, 7, 2), range(2, 10), "does not hold"),
        (None, LOSSES, "not measured"),
        ((5, 6), (3, 4), "not measured"),
    ],
)
def test_dimension_predicts_better(dimensions, losses, verdict):
    records = layered("conv-cifar", losses, list(dimensions) if dimensions else None)
    finding = dimension_predicts_better(records)
    assert finding.verdict == verdict


def test_two_measures_of_dimension_answer_for_themselves():
    records = layered("conv-cifar", LOSSES, LOSSES)
    for record in records:
        record["intrinsic_dimension_maps"] = -record["intrinsic_dimension"]
    finding = dimension_predicts_better(records)
    assert finding.verdict == "depends"
    assert "by rows: −1.00" in finding.answer
    assert "by whole input: +1.00" in finding.answer


# Together


def test_a_failed_cell_is_no_number():
    """Cells without an accuracy are passed by, whatever else they lack."""
    for claim, cells in (
        (threshold_is_cheapest, table1(Dice())),
        (feta_is_most_accurate, fig2(Dice())),
        (accuracy_falls_with_depth, layer_cells("conv-cifar", 6, Dice())),
        (larger_k_is_less_robust, k_cells(Dice())),
    ):
        bare = {"accuracy": None, "dense_accuracy": None, "prune_seconds": None, "reason": "out of memory"}
        failed = [
            {k: v for k, v in (cell | bare | {"seed": 99}).items() if v is not None or k == "accuracy"}
            for cell in cells
        ]
        assert claim([*cells, *failed]) == claim(cells)


def test_every_claim_is_judged_once_and_in_words():
    sources = (
        Source("table1", "table1", tuple(table1(Dice()))),
        Source("fig2", "fig2", tuple(fig2(Dice()))),
        Source("fig3a", "fig3a", tuple(layer_cells("conv-mnist", 6, Dice()))),
        Source("fig3c", "fig3c", tuple(k_cells(Dice()))),
    )
    findings = judge_claims(Results(sources))
    assert len({finding.key for finding in findings}) == len(findings) == 9
    for finding in findings:
        assert finding.verdict != "not measured"
        assert finding.why
        assert finding.answer.endswith(".")
        assert all(len(row) == len(finding.columns) for row in finding.rows)
    assert all(finding.verdict == "not measured" for finding in judge_claims(Results(())))


def test_the_paper_s_table_is_what_was_printed():
    assert len(paper.TABLE1) == len(paper.NETS) * len(paper.METHODS)
    assert paper.TABLE1["dense-cifar", "lobs"] == paper.Printed("1 h", 45.0)
    assert paper.TABLE1["conv-fashion", "lobs"].seconds == 3 * 3600
    assert paper.TABLE1["dense-fashion", "corenet"].seconds == 42 * 60
    assert paper.TABLE1["conv-mnist", "threshold"].seconds == 0.5
    for net in paper.NETS:  # the paper's own conclusion
        times = {method: paper.TABLE1[net, method].seconds for method in paper.METHODS}
        assert min(times, key=times.__getitem__) == "threshold"
