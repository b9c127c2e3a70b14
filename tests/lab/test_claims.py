"""Verdicts on records made by hand: every outcome of every rule, and data in which there is nothing to find."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from handmade import everywhere, fig2, k_cells, layer_cells, table1

from feta_lab import paper
from feta_lab.claims import (
    depth,
    dimension,
    dimension_predicts,
    exponential,
    feta_faster,
    feta_most_accurate,
    gains_dense,
    judge_claims,
    rivals_inconsistent,
    threshold_cheapest,
)
from feta_lab.claims.finding import Finding, by_lot, overall
from feta_lab.results import Results, Source

Records = list[dict[str, Any]]
Values = Mapping[str, Mapping[str, Sequence[float]]]  # network -> method -> a number per seed

NETS = paper.NETS
SHARES = (0.5, 0.7, 0.9)


class Dice:
    """No luck at all: the middle of every range."""

    def uniform(self, low, high):
        return (low + high) / 2


def cells(values: Values, field: str = "accuracy", **fields: Any) -> Records:
    """A record for each number, which stands in `field`."""
    plain = {"sparsity": 0.9, "accuracy": 80.0, "dense_accuracy": 98.0, "refine": False, "prune_seconds": 1.0}
    return [
        everywhere(net, method=method, seed=seed) | plain | {field: value} | fields
        for net, methods in values.items()
        for method, numbers in methods.items()
        for seed, value in enumerate(numbers)
    ]


def retrained(values: Values, **fields: Any) -> Records:
    """Total seconds, a tenth of them for pruning; infinity for a network that did not recover."""
    records = cells(values, "total", **fields)
    for record in records:
        recovered = record["total"] < np.inf
        total = record["total"] if recovered else 50.0
        record |= {"recovered": recovered, "prune_seconds": 0.1 * total, "retrain_seconds": 0.9 * total}
    return records


def layered(losses: Sequence[float], dimensions: Sequence[float] | None = None, net: str = "conv-cifar") -> Records:
    """Layers first to last with their loss at 90 %, on a straight line from zero at 50 %."""
    return [
        everywhere(net, seed=0, layer=f"l{place}", depth=place, layers=len(losses), sparsity=share)
        | {"dense_accuracy": 90.0, "accuracy": 90.0 - lost * (share - 0.5) / 0.4}
        | {"intrinsic_dimension": dimensions[place - 1] if dimensions is not None else None}
        for place, lost in enumerate(losses, start=1)
        for share in SHARES
    ]  # fmt: skip


def projected(lost: Callable[[int, int, float], float], dense: Callable[[int], float]) -> Records:
    """Ten networks for each k; `lost` of k, network and sparsity."""
    return [
        everywhere("conv-cifar", k=k, network=number, sparsity=share, dense_accuracy=dense(k))
        | {"accuracy": dense(k) - lost(k, number, share)}
        for k, number, share in itertools.product(range(50, 351, 50), range(10), SHARES)
    ]


def same(numbers: Mapping[str, float], nets: Sequence[str] = NETS, seeds: int = 3) -> Values:
    return {net: {method: [value] * seeds for method, value in numbers.items()} for net in nets}


# One verdict


def test_one_verdict_from_many_answers() -> None:
    assert overall([]) == "not measured"
    assert overall(["yes", "yes"]) == "holds"
    assert overall(["yes", "yes"], luck=0.06) == "depends"
    assert overall(["no", "no"], luck=0.06) == "does not hold"
    assert overall(["yes", "no"]) == overall(["mixed"]) == overall(["mixed", "yes"]) == "depends"
    assert by_lot(3, [0.5] * 3) == pytest.approx(1 / 8)
    assert by_lot(1, [0.5, 0.25]) == pytest.approx(1 - 0.5 * 0.75)
    assert by_lot(0, [0.3]) == pytest.approx(1)


# Every rule: data on which it holds, does not hold, depends and is not measured

LINE = [2.0 + 3.0 * r for r in range(8)][::-1]
CURVE = [0.25 * 2.0**r for r in range(8)][::-1]
MIXED = (4.0, 20.0, 8.0, 12.0, 3.0, 16.0, 2.0, 10.0)
ERRATIC: Values = {
    "a": {"threshold": [70.0, 70.0], "corenet": [80.0, 79.0], "net-trim": [80.0, 79.0]},
    "b": {"threshold": [70.0, 70.0], "corenet": [60.0, 61.0], "net-trim": [60.0, 61.0]},
}
INF = float("inf")


def cheapest(*totals: Mapping[str, Sequence[float]], **fields: Any) -> Finding:
    return threshold_cheapest.judge(retrained(dict(zip(NETS, totals, strict=False)), **fields))


def accurate(numbers: Mapping[str, float], nets: int = 6, **other: Mapping[str, float]) -> Finding:
    values = same(numbers, NETS[:nets]) | {net: {m: [v] * 3 for m, v in mine.items()} for net, mine in other.items()}
    return feta_most_accurate.judge(cells(values))


def faster(feta: float, lobs: float, nets: int = 6, **fields: Any) -> Finding:
    return feta_faster.judge(cells(same({"feta": feta, "lobs": lobs}, NETS[:nets]), "prune_seconds", **fields))


def inconsistent(**changes: Mapping[str, Sequence[float]]) -> Finding:
    return rivals_inconsistent.judge(cells({net: {**mine, **changes.get(net, {})} for net, mine in ERRATIC.items()}))


def gained(dense: float, conv: float | None, data: Sequence[str] = ("mnist", "fashion", "cifar")) -> Finding:
    points = {"dense": dense, "conv": conv}
    return gains_dense.judge(cells({
        f"{kind}-{name}": {"threshold": [70.0], "feta": [70.0 + gain + i / 10]}
        for i, name in enumerate(data) for kind, gain in points.items() if gain is not None
    }))  # fmt: skip


def robust(slope: float, dense: Callable[[int], float] = lambda k: 70.0) -> Finding:
    return dimension.judge(projected(lambda k, i, share: share * (5 + slope * k + i / 10), dense))


FAST, SLOW = {"threshold": [3, 4], "lobs": [9, 9], "feta": [5, 5]}, {"threshold": [3, 4], "feta": [2, 2]}
OUTCOMES: list[tuple[Callable[[], Finding], str]] = [
    (lambda: cheapest(FAST, FAST, FAST), "holds"),
    (lambda: cheapest(FAST), "depends"),  # one of three methods is the cheapest in one network
    (lambda: cheapest(SLOW, SLOW), "does not hold"),
    (lambda: cheapest({"threshold": [3, 4], "feta": [3.5, 3.6]}), "depends"),  # one seed each
    (lambda: cheapest(FAST, SLOW), "depends"),
    (lambda: cheapest(*[{"threshold": [3], "lobs": [INF], "feta": [INF]}] * 3), "holds"),  # the only one that arrived
    (lambda: cheapest({"threshold": [INF], "lobs": [9]}), "does not hold"),
    # Only the shared seed counts; and in each seed the rival that is the cheapest there.
    (lambda: cheapest(*[{"threshold": [3], "alps": [4, 0.1, 0.1]}] * 5), "holds"),
    (lambda: cheapest(*[{"threshold": [3, 3], "alps": [2, 4], "wanda": [4, 2]}] * 5), "does not hold"),
    (lambda: cheapest({"threshold": [INF], "lobs": [INF]}), "not measured"),
    (lambda: cheapest({"threshold": [3]}), "not measured"),
    (lambda: cheapest(FAST, timed=False), "not measured"),
    (lambda: accurate({"feta": 95.0, "alps": 94.0}), "holds"),
    (lambda: accurate({"feta": 95.0, "alps": 94.0, "lobs": 90.0}, conv={"feta": 90.0, "alps": 90.08}), "holds"),
    (lambda: accurate({"feta": 95.0, "alps": 94.0}, nets=4), "depends"),  # one coin in sixteen
    (lambda: accurate({"feta": 95.0, "alps": 95.0}), "depends"),
    (lambda: accurate({"feta": 95.0, "alps": 96.0}), "does not hold"),
    (lambda: accurate({"feta": 95.0, "alps": 94.0}, conv={"feta": 90.0, "alps": 96.0}), "depends"),
    (lambda: accurate({"feta": 95.0, "feta:quality=best": 97.0}), "not measured"),
    (lambda: accurate({"alps": 95.0}), "not measured"),
    (lambda: faster(1.0, 8.0), "holds"),
    (lambda: faster(1.0, 8.0, nets=4), "depends"),
    (lambda: faster(1.0, 3.0), "depends"),
    (lambda: faster(3.0, 1.0), "does not hold"),
    (lambda: faster(1.0, 8.0, timed=False), "not measured"),
    (lambda: inconsistent(), "holds"),
    (lambda: inconsistent(b={"corenet": [69.95, 69.96], "net-trim": [75.0, 74.0]}), "does not hold"),
    (lambda: inconsistent(b={"net-trim": [75.0, 74.0]}), "depends"),  # only corenet is inconsistent
    (lambda: inconsistent(b={"corenet": [60.0, 70.5], "net-trim": [60.0, 70.5]}), "does not hold"),  # not every seed
    (lambda: inconsistent(a={"corenet": [69.0, 90.0], "net-trim": [69.0, 90.0]}), "depends"),  # the seeds explain it
    (lambda: rivals_inconsistent.judge(cells({"a": ERRATIC["a"]})), "not measured"),
    (lambda: gained(7.0, 0.5), "holds"),
    (lambda: gained(7.0, 0.5, ("mnist", "cifar")), "depends"),  # two above two come about once in six
    (lambda: gained(7.0, 9.0), "does not hold"),
    (lambda: gained(7.0, 7.0), "depends"),
    (lambda: gained(7.0, None), "not measured"),
    (lambda: depth.judge(layered(LINE)), "holds"),
    (lambda: depth.judge(layered(LINE[::-1])), "does not hold"),
    (lambda: depth.judge(layered((9, 8, 7, 6))), "depends"),  # in order, but four layers cannot exclude chance
    (lambda: depth.judge(layered((3, 4, 5, 4))), "depends"),  # and the other way round
    (lambda: depth.judge(layered((9, 3, 8, 4, 7, 5))), "depends"),
    (lambda: depth.judge(layered(LINE) + layered(LINE[::-1], net="conv-mnist")), "depends"),
    (lambda: depth.judge(layered((0.1, 0.2, 0.3, 0.4))), "not measured"),  # nothing is lost
    (lambda: depth.judge(layered((9, 8))), "not measured"),
    (lambda: exponential.judge(layered(CURVE)), "holds"),
    (lambda: exponential.judge(layered(CURVE[1:-1])), "holds"),
    (lambda: exponential.judge(layered(LINE)), "does not hold"),
    (lambda: exponential.judge(layered(CURVE[::-1])), "does not hold"),
    (lambda: exponential.judge(layered((30, *CURVE[1:][::-1]))), "does not hold"),  # the others in reversed order
    (lambda: exponential.judge(layered(CURVE) + layered(LINE, net="conv-mnist")), "depends"),
    (lambda: exponential.judge(layered(CURVE[:5])), "not measured"),  # too few layers
    (lambda: exponential.judge([r for r in layered([79.0 * 0.99**r for r in range(8)]) if r["sparsity"] != 0.7]),
     "not measured"),  # nothing is left to lose
    (lambda: robust(0.03), "holds"),
    (lambda: robust(-0.01), "does not hold"),
    (lambda: robust(0.0), "depends"),
    (lambda: robust(0.03, lambda k: 10.0 + k), "depends"),  # more points, a smaller share of what there is to lose
    (lambda: dimension.judge([r for r in projected(lambda *_: 9.0, lambda k: 70.0) if r["k"] == 50]), "not measured"),
    (lambda: dimension_predicts.judge(layered(MIXED, MIXED)), "holds"),  # the dimension decides, the depth nothing
    (lambda: dimension_predicts.judge(layered(MIXED, (4, 1, 3, 2, 5, 1, 6, 2))), "does not hold"),
    (lambda: dimension_predicts.judge(layered(LINE, range(8, 0, -1))), "does not hold"),  # as good is not better
    (lambda: dimension_predicts.judge(layered((9, 7, 8, 6, 5, 3, 4, 2), (9, 7, 8, 5, 6, 3, 4, 2))), "depends"),
    # The depth is wrong and the dimension less so: still no prediction.
    (lambda: dimension_predicts.judge(layered(range(2, 10), (4, 3, 5, 2, 6, 1, 7, 2))), "does not hold"),
    (lambda: dimension_predicts.judge(layered(MIXED)), "not measured"),
    (lambda: dimension_predicts.judge(layered((3, 4), (5, 6))), "not measured"),
]  # fmt: skip


@pytest.mark.parametrize(("judged", "verdict"), OUTCOMES)
def test_outcomes(judged: Callable[[], Finding], verdict: str) -> None:
    finding = judged()
    assert finding.verdict == verdict, finding.answer
    assert bool(finding.rows) == (verdict != "not measured")


def test_every_rule_can_say_yes_and_no() -> None:
    said = {(finding.key, finding.verdict) for finding in (judged() for judged, _ in OUTCOMES)}
    keys = {finding.key for finding in judge_claims(Results(()))}
    assert len(keys) == 9
    assert {(key, verdict) for key in keys for verdict in ("holds", "does not hold")} <= said


# Every rule: draws in which there is nothing to find


def noise(draw: np.random.Generator, methods: Sequence[str], spread: float, nets: Sequence[str] = NETS) -> Values:
    """Methods that differ by chance from network to network, and half as much from seed to seed."""
    return {
        net: {m: list(80 + draw.normal(0, spread) + draw.normal(0, spread / 2, 3)) for m in methods} for net in nets
    }


def swapped(draw: np.random.Generator) -> Values:
    """LOBS is ten times slower than feta or the other way round, by lot in each network."""
    return {net: dict(zip(draw.permutation(["feta", "lobs"]), ([1.0], [10.0]), strict=True)) for net in NETS}


def times(draw: np.random.Generator, methods: int, nets: int, broken: float = 0.0) -> Records:
    """The same times in every seed but for noise, which method has which by lot; some do not recover."""
    names = ("threshold", "lobs", "net-trim", "corenet", "feta")[:methods]
    values = {net: {m: list(draw.uniform(1, 9) * draw.uniform(0.99, 1.01, 3)) for m in names} for net in NETS[:nets]}
    return retrained({
        net: {m: [INF] * 3 if draw.random() < broken else mine[m] for m in names} for net, mine in values.items()
    })  # fmt: skip


def seeds_only(draw: np.random.Generator, methods: Sequence[str], spreads: Sequence[float]) -> Values:
    """Methods that are equal in all networks; seeds scatter by another amount in each."""
    return {
        net: {m: list(80 + draw.normal(0, spread, 3)) for m in methods}
        for net, spread in zip(NETS, spreads, strict=False)
    }


def shares(draw: np.random.Generator, room: Callable[[int], float]) -> Records:
    """Every network loses about half of what it has above chance, whatever its k."""
    part = draw.normal(0.5, 0.1, (351, 10))
    return projected(lambda k, i, share: share * part[k, i] * room(k), lambda k: paper.CHANCE + room(k))


RIVALS, UNEVEN = ("threshold", "corenet", "net-trim"), (1, 1, 1, 5, 9, 9)
NULLS: dict[str, Callable[[np.random.Generator], Finding]] = {
    "cheapest: five methods by lot": lambda g: threshold_cheapest.judge(times(g, 5, 3)),
    "cheapest: two methods by lot": lambda g: threshold_cheapest.judge(times(g, 2, 2)),
    "cheapest: recovery by lot": lambda g: threshold_cheapest.judge(times(g, 3, 6, broken=0.5)),
    "accurate: equal methods": lambda g: feta_most_accurate.judge(cells(noise(g, ("feta", "alps"), 0.02))),
    "accurate: two by lot": lambda g: feta_most_accurate.judge(cells(noise(g, ("feta", "alps"), 5, nets=NETS[:3]))),
    "accurate: four by lot": lambda g: feta_most_accurate.judge(cells(noise(g, ("feta", "a", "b", "c"), 5))),
    "faster: swapped labels": lambda g: feta_faster.judge(cells(swapped(g), "prune_seconds")),
    "inconsistent: seeds only": lambda g: rivals_inconsistent.judge(cells(seeds_only(g, RIVALS, [3] * 6))),
    "inconsistent: one rival": lambda g: rivals_inconsistent.judge(cells(seeds_only(g, RIVALS[:2], [3] * 6))),
    "inconsistent: uneven seeds": lambda g: rivals_inconsistent.judge(cells(seeds_only(g, RIVALS, UNEVEN))),
    "gains: dense and conv by lot": lambda g: gains_dense.judge(cells(noise(g, ("threshold", "feta"), 3))),
    "gains: two data sets": lambda g: gains_dense.judge(
        cells(noise(g, ("threshold", "feta"), 3, nets=("dense-mnist", "conv-mnist", "dense-cifar", "conv-cifar")))
    ),
    "depth: random layers": lambda g: depth.judge(layered(g.uniform(2, 20, 8))),
    "depth: one fragile layer": lambda g: depth.judge(layered([30, *g.uniform(2, 20, 7)])),
    "exponential: random layers": lambda g: exponential.judge(layered(g.uniform(0, 20, 8))),
    "exponential: one fragile layer": lambda g: exponential.judge(layered([30, *g.uniform(0, 4, 7)])),
    "exponential: noise on a line": lambda g: exponential.judge(layered(np.array(LINE) + g.normal(0, 3, 8))),
    "exponential: reversed": lambda g: exponential.judge(layered([30, *np.sort(g.exponential(4, 7))])),
    "dimension: shuffled k": lambda g: dimension.judge(shares(g, lambda k: 60.0)),
    "dimension: one share lost": lambda g: dimension.judge(shares(g, lambda k: 40 + k / 10)),
    "predicts: all random": lambda g: dimension_predicts.judge(layered(g.uniform(2, 20, 8), g.uniform(5, 50, 8))),
    "predicts: depth rules": lambda g: dimension_predicts.judge(layered(LINE, g.uniform(5, 50, 8))),
    "predicts: depth misleads": lambda g: dimension_predicts.judge(layered(LINE[::-1], g.uniform(5, 50, 8))),
}  # fmt: skip


@pytest.mark.parametrize("null", NULLS)
def test_nothing_to_find(null: str) -> None:
    """A rule is wrong that says "holds" in more than 5 % of 200 draws."""
    said = [NULLS[null](np.random.default_rng(seed)).verdict for seed in range(200)]
    assert "not measured" not in said
    assert said.count("holds") <= 10, said.count("holds")


# Numbers and words


def test_medians_of_seconds_over_shared_seeds() -> None:
    values = {"threshold": [10.0, 10.0, 400.0], "alps": [5.0, 5.0, 5.0, 900.0], "lobs": [20.0] * 3}
    found = cheapest(values, {"threshold": [INF], "lobs": [INF]})
    assert found.rows == ((NETS[0], 10.0, "alps", 5.0, 0.5, "no"),)
    assert "in 0 of 1 network; against the paper's own rivals alone in 0 of 1" in found.answer  # lobs wins a seed
    assert "thresholding prunes in 1.0 s and retrains for 9.0 s" in found.why
    stalled = cells({"dense-mnist": {"feta": [1.0, 1.0, 1e6], "lobs": [8.0, 8.0, 8.0]}}, "prune_seconds")
    assert feta_faster.judge(stalled).rows == (("dense-mnist", 1.0, 8.0, 8.0),)
    # Every trained network counts by itself as well.
    found = cheapest({"threshold": [3, 9, INF], "alps": [4, 4, 5.5]}, {"threshold": [INF], "alps": [INF]})
    assert "cheapest in 1 of the 3 trained networks that any method brought back (4 were tried)" in found.answer


def test_accuracies_are_means_over_shared_seeds() -> None:
    records = cells({"a": {"feta": [95.0, 93.0, 50.0], "alps": [94.0, 93.0]}})
    errors = ([0.1, 0.3], [0.2], None, [0.4, None], [0.4])
    for record, error in zip(records, errors, strict=True):
        record["relative_error"] = error
    found = feta_most_accurate.judge(records)
    assert found.rows == (("a", 94.0, "alps", 93.5, 0.5, 2),)
    assert "by 0.20 on average (relative), those of the best other method by 0.40" in found.why


def test_feta_as_published_meets_the_paper_s_rivals_only() -> None:
    label = "feta:solver=svrg+debias=false"
    values = {label: 90.0, "feta": 95.0, "alps": 94.0, "lobs": 85.0, "threshold": 80.0, "net-trim": 80.0}
    values["corenet"] = 70.0
    found = feta_most_accurate.judge_published(cells(same(values, NETS[:2])))  # first of five, twice
    assert found is not None
    assert (found.key, found.verdict, found.rows[0][2]) == ("feta-published", "holds", "lobs")
    assert feta_most_accurate.judge_published(cells(same({"feta": 95.0, "lobs": 85.0}))) is None


def test_a_network_on_two_devices_has_two_cases() -> None:
    dense = {"dense-mnist": {"threshold": [90.0], "feta": [97.0]}}
    records = cells(dense, device="cpu") + cells(dense, device="cuda")
    found = gains_dense.judge(records + cells({"conv-mnist": {"threshold": [97.0], "feta": [97.5]}}))
    assert found.rows == (("mnist", 7.0, 0.5, 8.0, 1.0),) * 2


def test_a_rise_that_rests_on_one_layer_is_told() -> None:
    found = depth.judge(layered((30, 8, 9, 7, 6, 8.5, 4, 3)))
    assert (found.verdict, [row[1:3] for row in found.rows]) == ("depends", [(70.0, 0.81), (90.0, 0.81)])
    assert "interval above zero at 2 of 2 sparsities, at 0 also without the first layer" in found.answer


def test_the_exponential_is_recovered() -> None:
    x = np.arange(6.0)
    factor, explained = exponential.fit_exponential(x, 3 * 1.7**x)
    assert (factor, explained) == (pytest.approx(1.7, rel=2e-3), pytest.approx(1, abs=1e-4))
    assert exponential.fit_exponential(x, 4 - 2 * x)[1] < 0.9
    assert exponential.is_convex(x, 3 * 1.7**x)
    assert not exponential.is_convex(x, -(1.7**x))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({0.0: 0.0, 0.5: 0.5, 0.9: 2.5}, 0.6),  # crosses 1 a quarter of the way
        ({0.5: 0.2, 0.9: 0.9}, 0.9),
        ({0.5: 2.0, 0.9: 0.0}, 0.25),  # the first crossing counts, whatever comes after
        ({0.0: 1.5, 0.5: 0.0}, 0.0),
    ],
)
def test_safe_sparsity(losses: Mapping[float, float], expected: float) -> None:
    assert dimension_predicts.safe_sparsity(losses) == pytest.approx(expected)


def test_two_measures_of_dimension_answer_for_themselves() -> None:
    records = [r | {"intrinsic_dimension_maps": -r["intrinsic_dimension"]} for r in layered(MIXED, MIXED)]
    found = dimension_predicts.judge(records)
    assert found.verdict == "depends"
    assert "by rows: −1.00" in found.answer
    assert "by whole input: +1.00" in found.answer


# Together


@pytest.mark.parametrize(
    ("rule", "records"),
    [
        (threshold_cheapest.judge, table1(Dice())),
        (feta_most_accurate.judge, fig2(Dice())),
        (depth.judge, layer_cells("conv-cifar", 6, Dice())),
        (exponential.judge, layer_cells("conv-cifar", 6, Dice())),
        (dimension.judge, k_cells(Dice())),
    ],
)
def test_a_failed_cell_is_no_number(rule: Callable[[Records], Finding], records: Records) -> None:
    """Cells without an accuracy are passed by, whatever else they lack."""
    gone = ("dense_accuracy", "prune_seconds")
    failed = [{k: v for k, v in r.items() if k not in gone} | {"accuracy": None, "seed": 99} for r in records]
    assert rule([*records, *failed]) == rule(records)


def test_every_claim_is_judged_once_and_in_words() -> None:
    made = {"table1": table1(Dice()), "fig2": fig2(Dice()), "fig3c": k_cells(Dice())}
    made["fig3a"] = layer_cells("conv-mnist", 6, Dice())
    findings = judge_claims(Results(tuple(Source(name, name, tuple(cells)) for name, cells in made.items())))
    assert len({finding.key for finding in findings}) == len(findings) == 9
    for finding in findings:
        assert finding.verdict != "not measured"
        assert finding.why
        assert finding.answer.endswith(".")
        assert {len(row) for row in finding.rows} == {len(finding.columns)}
    assert all(finding.verdict == "not measured" for finding in judge_claims(Results(())))


def test_the_paper_s_table_is_what_was_printed() -> None:
    assert len(paper.TABLE1) == len(paper.NETS) * len(paper.METHODS)
    assert paper.TABLE1["dense-cifar", "lobs"] == paper.Printed("1 h", 45.0)
    assert paper.TABLE1["dense-fashion", "corenet"].seconds == 42 * 60
    assert paper.TABLE1["conv-mnist", "threshold"].seconds == 0.5
    for net in paper.NETS:  # the paper's own conclusion
        times = {method: paper.TABLE1[net, method].seconds for method in paper.METHODS}
        assert min(times, key=times.__getitem__) == "threshold"
