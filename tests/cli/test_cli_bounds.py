"""feta bounds: the tables, the JSON object, and what is refused."""

import math

import pytest

from feta.cli.bounds import power

QUICK = "--samples 300 --starts 2"


def test_tables(run, trained, pruned):
    answer = run(f"bounds {trained} {pruned} {QUICK}")
    answer.says("‖U − W‖₂", "fc1", "softmax", "Theorem 5.2", "any image", "m = 300 training samples", "k = ")
    answer.says("three-step procedure: 2 starts reach", "every bound is vacuous")


def test_json(run, trained, pruned):
    found = run(f"bounds {trained} {pruned} {QUICK} --json").json()
    assert [layer["name"] for layer in found["layers"]] == ["fc1", "fc2", "softmax"]
    assert found["layers"][2]["change"]["value"] == 0
    assert found["layers"][0]["change"]["value"] > 0
    assert (found["samples"], found["vacuous"]) == (300, True)
    assert {bound["manifold"] for bound in found["bounds"]} == {"measured", "box"}
    assert run(f"bounds {trained} {pruned} {QUICK} --json").json() == found


def test_a_network_against_itself(run, trained):
    found = run(f"bounds {trained} {trained} {QUICK} --json").json()
    assert found["agree"] == 300
    assert found["procedure"]["bound"] is not None
    by = {(b["theorem"], b["form"], b["manifold"], b["layer"]): b["log_bound"] for b in found["bounds"]}
    assert by["5.2", "paper", "measured", None] == by["dense", "paper", "measured", None]


def test_a_given_manifold(run, trained, pruned):
    found = run(f"bounds {trained} {pruned} {QUICK} --dimension 2 --regularity 5 --json").json()
    assert found["manifold"] == {"dimension": 2, "regularity": 5, "source": "given"}
    assert found["regularity"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--samples 5", "--samples must be >= 100, got 5"),
        ("--starts -1", "--starts must be >= 0, got -1"),
        ("--delta 1", "--delta must be in (0, 1), got 1"),
        ("--dimension 3", "--dimension and --regularity must be given together"),
        ("--dimension 3 --regularity -1", "Manifold.regularity must be > 0"),
        ("--data mnst", "did you mean 'mnist'"),
    ],
)
def test_what_is_refused(run, trained, options, words):
    run(f"bounds {trained} {trained} {options}").refused(words)


def test_numbers_are_readable():
    shown = {math.log(12.345): "12.3", 1000.0: "10^434.3", -1000.0: "10^-434.3", -math.inf: "0", math.inf: "∞"}
    assert [power(logarithm) for logarithm in shown] == list(shown.values())
