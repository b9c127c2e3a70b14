"""feta retrain and feta prune --refine: files in, files out, the zeros the same."""

from pathlib import Path

import pytest
import torch

import feta
from feta_lab.judge import judge
from feta_lab.records import read


def nonzeros(path) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in feta.masks_of(feta.load(path).model).items()}


def test_json_file_and_record_agree(run, pruned, mini):
    found = run(f"retrain {pruned} --json --epochs 2 --tolerance 50 -o out.safetensors --records all.jsonl").json()
    before, after = feta.load(pruned), feta.load("out.safetensors")
    assert found["goal"] == before.info.pruning["dense_accuracy"]["validation"]
    assert found["accuracy"] == {"pruned": judge(before.model, mini), "retrained": judge(after.model, mini)}
    assert nonzeros("out.safetensors") == nonzeros(pruned) == {"fc1": 4704, "fc2": 360}
    assert found.pop("output") == "out.safetensors"
    (record,) = read(Path("all.jsonl"))
    assert (record["kind"], record["metrics"]) == ("retrain", found)
    assert (record["config"]["max_epochs"], record["config"]["tolerance"]) == (2, 50.0)


def test_words(run, pruned):
    answer = run(f"retrain {pruned} --goal 100 --epochs 1 --batch-size 500 -o out.safetensors")
    answer.says("not recovered, all epochs used (goal 100.00 % less 0.1): validation ", "1.00 epochs")
    answer.says("\ntest accuracy ", "written to out.safetensors\n")
    run(f"retrain {pruned} --goal 5").says("recovered (goal 5.00")
    run(f"retrain {pruned} --goal 100 --seconds 1e-9").says("not recovered, time is up")


def test_a_network_of_other_origin_and_those_who_read_what_became_of_it(run, trained):
    """It has zeros and does not say why: no goal, no method, and that is no reason to fail."""
    network = feta.load(trained)
    with torch.no_grad():
        network.model.fc1.weight[:30] = 0
    feta.save(network, "zeros.safetensors")
    answer = run("retrain zeros.safetensors --epochs 1 --batch-size 500 -o out.safetensors")
    answer.says("trained without a goal: validation ")
    told = run("info out.safetensors")
    told.says("Retrained: 1.00 epochs, all that were allowed\n")
    assert "Pruned by" not in told.out
    run(f"certify {trained} out.safetensors --samples 2 --no-attack -o certificate").says()
    assert "compared, against the original" in Path("certificate/certificate.html").read_text()


def test_refinement_and_what_info_says_of_it(run, trained, pruned):
    line = f"prune {trained} --refine --refine-steps 60"
    found = run(f"{line} --json -o refined.safetensors").json()
    refinement = found["refinement"]
    assert refinement["steps"] == 60
    assert refinement["loss_after"] < refinement["loss_before"]
    assert found["accuracy"]["pruned"]["validation"] > feta.load(pruned).info.accuracy["validation"]
    assert nonzeros("refined.safetensors") == nonzeros(pruned)
    run(line).says("\nrefined: difference of probabilities of the outputs ")
    run("info refined.safetensors").says("Refined: 60 steps towards the original's outputs (kl), zeros kept\n")
    goal = found["accuracy"]["dense"]["validation"]
    run("retrain refined.safetensors --tolerance 90 -o out.safetensors").says("recovered (goal")
    stopped = f"Retrained: 0.00 epochs, until the accuracy was back (goal {goal:.2f} % less 90.0 points)\n"
    run("info out.safetensors").says("Pruned by threshold: 90 % zeros", "Refined: 60 steps", stopped)


def test_a_network_that_was_not_pruned(run, trained):
    run(f"retrain {trained} --epochs 1").refused(f"{trained} must be pruned, got no zero", f"feta prune {trained}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--epochs 0", "feta: --epochs must be > 0 and finite, got 0"),
        ("--goal 200", "feta: --goal must be in [0, 100], got 200"),
        ("--learning-rate nan", "feta: --learning-rate must be > 0 and finite"),
        ("--goal nan", "--goal must be in [0, 100], got nan"),
        ("--seconds inf", "seconds must be > 0 and finite, got inf"),
        ("--patience inf", "patience must be > 0 and finite, got inf"),
        ("--tolerance inf", "tolerance must be >= 0 and finite"),
    ],
)
def test_refused(run, pruned, options, words):
    run(f"retrain {pruned} {options}").refused(words)
    run("retrain nothing.safetensors").refused("nothing.safetensors")
