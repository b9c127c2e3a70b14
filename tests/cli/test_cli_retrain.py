"""feta retrain and feta prune --refine: files in, files out, the zeros the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import feta
from feta_lab.judge import judge
from feta_lab.records import read


@pytest.fixture
def pruned(run, trained):
    assert run("prune", trained, "--sparsity", "0.9", "-o", "pruned.safetensors").code == 0
    return feta.load("pruned.safetensors")


def nonzeros(network) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in feta.masks_of(network.model).items()}


def test_json_file_and_record_agree(run, pruned, mini):
    answer = run(
        "retrain",
        "pruned.safetensors",
        "--json",
        "--epochs",
        "2",
        "--tolerance",
        "50",
        "-o",
        "out.safetensors",
    )
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert found["goal"] == pruned.info.pruning["dense_accuracy"]["validation"]
    retrained = feta.load("out.safetensors")
    assert found["accuracy"] == {
        "pruned": judge(pruned.model, mini),
        "retrained": judge(retrained.model, mini),
    }
    assert nonzeros(retrained) == nonzeros(pruned) == {"fc1": 4704, "fc2": 360}
    (_, record) = read(Path("feta-records.jsonl"))
    assert (record["kind"], record["metrics"]) == ("retrain", found)
    assert (record["config"]["max_epochs"], record["config"]["tolerance"]) == (2, 50.0)


def test_words(run, pruned):
    answer = run("retrain", "pruned.safetensors", "--goal", "101", "--epochs", "1", "--batch-size", "500")
    assert answer.code == 0
    assert answer.out.startswith("not recovered, all epochs used (goal 101.00 % less 0.1): validation ")
    assert "1.00 epochs" in answer.out
    assert "\ntest accuracy " in answer.out
    assert "recovered (goal 5.00" in run("retrain", "pruned.safetensors", "--goal", "5").out
    late = run("retrain", "pruned.safetensors", "--goal", "101", "--seconds", "1e-9")
    assert late.out.startswith("not recovered, time is up")


def test_a_network_of_other_origin_and_those_who_read_what_became_of_it(run, trained):
    """It has zeros and does not say why: no goal, no method, and that is no reason to fail."""
    network = feta.load(trained)
    with torch.no_grad():
        network.model.fc1.weight[:30] = 0
    feta.save(network, "zeros.safetensors")
    answer = run("retrain", "zeros.safetensors", "--epochs", "1", "--batch-size", "500", "-o", "out.safetensors")
    assert answer.out.startswith("trained without a goal: validation ")
    told = run("info", "out.safetensors")
    assert (told.code, told.err) == (0, "")
    assert "retrained: 1.0 epochs, stopped: epochs (no goal)\n" in told.out
    assert "pruned by" not in told.out
    assert run("certify", trained, "out.safetensors", "--samples", "2", "--no-attack").code == 0
    assert "compared, against the original" in Path("certificate/certificate.html").read_text()


def test_a_network_that_was_not_pruned(run, trained):
    words = f"{trained} must be pruned, got no zero weights to hold; prune it first: feta prune {trained}"
    run("retrain", trained, "--epochs", "1", "-o", "out.safetensors").refused(words)


def test_info_says_what_was_done(run, trained, pruned):
    run("prune", trained, "--refine", "--refine-passes", "1", "-o", "refined.safetensors")
    run("retrain", "refined.safetensors", "--tolerance", "90", "-o", "out.safetensors")
    assert "refined: 1.0 passes, loss kl\n" in run("info", "refined.safetensors").out
    told = run("info", "out.safetensors").out
    assert "pruned by: threshold to 0.9" in told
    assert "refined: 1.0 passes" in told
    goal = pruned.info.pruning["dense_accuracy"]["validation"]
    assert f"retrained: 0.0 epochs, stopped: recovered (goal {goal} less 90.0)\n" in told
    told = run("info", "pruned.safetensors").out
    assert "refined" not in told
    assert "retrained" not in told


def test_refinement(run, trained, pruned):
    arguments = ("prune", trained, "--sparsity", "0.9", "--refine", "--refine-passes", "1")
    found = json.loads(run(*arguments, "--json", "-o", "refined.safetensors").out)
    refinement = found["refinement"]
    assert refinement["passes"] == 1.0
    assert refinement["loss_after"] < refinement["loss_before"]
    assert found["accuracy"]["pruned"]["validation"] > pruned.info.accuracy["validation"]
    assert nonzeros(feta.load("refined.safetensors")) == nonzeros(pruned)
    assert "\nrefined: kl of the outputs " in run(*arguments).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("retrain", "pruned.safetensors", "--epochs", "0"), ("max_epochs must be > 0", "got 0")),
        (
            ("retrain", "pruned.safetensors", "-o", "pruned.safetensors"),
            ("--output must differ from the input",),
        ),
        (("retrain", "nothing.safetensors"), ("nothing.safetensors",)),
        (
            ("retrain", "pruned.safetensors", "--learning-rate", "nan"),
            ("learning_rate must be > 0 and finite",),
        ),
        (("retrain", "pruned.safetensors", "--goal", "nan"), ("goal must be finite, got nan",)),
        (("retrain", "pruned.safetensors", "--seconds", "inf"), ("seconds must be > 0 and finite, got inf",)),
        (
            ("retrain", "pruned.safetensors", "--patience", "inf"),
            ("patience must be > 0 and finite, got inf",),
        ),
        (("retrain", "pruned.safetensors", "--tolerance", "inf"), ("tolerance must be >= 0 and finite",)),
        (("prune", "pruned.safetensors", "--refine-passes", "2"), ("--refine-passes must go with --refine",)),
        (
            ("prune", "pruned.safetensors", "--refine", "--refine-passes", "0"),
            ("passes must be > 0", "got 0"),
        ),
    ],
)
def test_refused(run, pruned, arguments, words):
    run(*arguments).refused(*words)
