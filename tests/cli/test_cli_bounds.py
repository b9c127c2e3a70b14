"""feta bounds: the tables, the JSON object, and what is refused."""

from __future__ import annotations

import json
import math

import pytest

from feta.cli.bounds import power

QUICK = ("--samples", "300", "--starts", "2")


@pytest.fixture
def pruned(run, trained, tmp_path):
    path = tmp_path / "pruned.safetensors"
    assert run("prune", trained, "--sparsity", "0.5", "-o", path).code == 0
    return path


def test_tables(run, trained, pruned, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    answer = run("bounds", trained, pruned, *QUICK)
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "‖U − W‖₂",
        "fc1",
        "softmax",
        "Theorem 5.2",
        "any image",
        "m = 300 training samples",
        "k = ",
    ):
        assert words in answer.out
    assert "three-step procedure: 2 starts reach" in answer.out
    assert "every bound is vacuous" in answer.out


def test_json(run, trained, pruned):
    answer = run("bounds", trained, pruned, *QUICK, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert [layer["name"] for layer in found["layers"]] == ["fc1", "fc2", "softmax"]
    assert found["layers"][2]["change"]["value"] == 0
    assert found["layers"][0]["change"]["value"] > 0
    assert found["samples"] == 300
    assert found["vacuous"] is True
    # Pixels are at most 1 / std apart, and there are 784 of them.
    assert {bound["manifold"] for bound in found["bounds"]} == {"measured", "box"}
    again = json.loads(run("bounds", trained, pruned, *QUICK, "--json").out)
    assert again == found


def test_a_network_against_itself(run, trained):
    found = json.loads(run("bounds", trained, trained, *QUICK, "--json").out)
    assert found["agree"] == 300
    assert found["procedure"]["bound"] is not None
    by = {(b["theorem"], b["form"], b["manifold"], b["layer"]): b["log_bound"] for b in found["bounds"]}
    assert by["5.2", "paper", "measured", None] == by["dense", "paper", "measured", None]


def test_a_given_manifold(run, trained, pruned):
    given = (*QUICK, "--dimension", "2", "--regularity", "5", "--json")
    found = json.loads(run("bounds", trained, pruned, *given).out)
    assert found["manifold"] == {"dimension": 2, "regularity": 5, "source": "given"}
    assert found["regularity"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--samples", "5"), "--samples must be >= 100, got 5"),
        (("--starts", "-1"), "--starts must be >= 0, got -1"),
        (("--delta", "1"), "--delta must be in (0, 1), got 1"),
        (("--dimension", "3"), "--dimension and --regularity must be given together"),
        (("--dimension", "3", "--regularity", "-1"), "Manifold.regularity must be > 0"),
        (("--data", "mnst"), "did you mean 'mnist'"),
    ],
)
def test_what_is_refused(run, trained, options, words):
    run("bounds", trained, trained, *options).refused(words)


def test_networks_that_do_not_match(run, trained, tmp_path, mini):
    from feta_lab import store
    from feta_lab.training import Training, train

    other = tmp_path / "other.safetensors"
    store.save(train("8FC-10SM", mini, Training(max_epochs=1)), other)
    run("bounds", trained, other, *QUICK).refused("must come from the dense one", "8FC-10SM")


def test_numbers_are_readable():
    assert power(math.log(12.345)) == "12.3"
    assert power(1000.0) == "10^434.3"
    assert power(-1000.0) == "10^-434.3"
    assert (power(-math.inf), power(math.inf)) == ("0", "∞")
