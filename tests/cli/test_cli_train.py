"""feta train and eval: files, records, and resuming after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import feta
from feta.tuning.loop import Loop
from feta_lab.judge import judge
from feta_lab.records import read


def train(run, *arguments, output="net.safetensors", epochs=1):
    return run("train", "dense-mnist", "--data", "mnist-mini", "--max-epochs", str(epochs), "-o", output, *arguments)


def test_train_writes_a_network_and_a_record(run, mini, tmp_path):
    answer = train(run, "--json", "--seed", "4", output=tmp_path / "net.safetensors")
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    found = json.loads(answer.out)
    network = feta.load(tmp_path / "net.safetensors")
    assert found["accuracy"] == network.info.accuracy == judge(network.model, mini)
    assert found["accuracy"]["test"] > 70
    assert found["file_bytes"] == (tmp_path / "net.safetensors").stat().st_size
    assert (network.info.preset, network.info.seed, network.info.data) == ("dense-mnist", 4, "mnist-mini")
    (entry,) = read(tmp_path / "feta-records.jsonl")
    assert (entry["kind"], entry["seed"], entry["config"]["max_epochs"]) == ("train", 4, 1)
    assert str(tmp_path) not in json.dumps(entry)
    assert {path.name for path in tmp_path.iterdir()} == {"here", "net.safetensors", "feta-records.jsonl"}


def test_train_speaks_to_people(run):
    answer = train(run)
    assert (answer.code, answer.err) == (0, "")
    first, second = answer.out.splitlines()
    assert first.startswith("60FC-60FC-10SM on MNIST (10,000 training digits): ")
    assert first.endswith("% validation, 1 epochs")
    assert second.startswith("written to net.safetensors (206.")


def test_the_same_command_gives_the_same_file(run):
    for name in ("a.safetensors", "b.safetensors"):
        train(run, output=name)
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_a_killed_run_goes_on(run, monkeypatch):
    train(run, output="whole.safetensors", epochs=2)
    whole, epochs = Loop._one_pass, []

    def killed(self):
        if self.number == 1:
            raise KeyboardInterrupt
        return whole(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_one_pass", killed)
        answer = train(run, epochs=2)
    assert (answer.code, answer.err) == (130, "feta: interrupted\n")
    assert sorted(os.listdir()) == ["feta-records.jsonl", "net.safetensors.partial", "whole.safetensors"]
    monkeypatch.setattr(Loop, "_one_pass", lambda *a: epochs.append(1) or whole(*a))
    assert train(run, epochs=2).code == 0
    assert len(epochs) == 1
    assert Path("net.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()
    assert "net.safetensors.partial" not in os.listdir()


def test_a_broken_checkpoint_is_refused(run):
    Path("net.safetensors.partial").write_bytes(b"")
    train(run).refused("net.safetensors.partial must be a whole safetensors file")


def test_a_network_in_the_papers_notation(run):
    answer = run("train", "16FC-10SM", "--data", "mnist-mini", "--max-epochs", "1", "-o", "net.safetensors")
    assert answer.code == 0
    assert feta.load("net.safetensors").info.preset is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dense-mnits"], ("unknown preset 'dense-mnits'; did you mean 'dense-mnist'?",)),
        (
            ["dense-mnits", "--data", "mnist-mini"],
            ("unknown preset 'dense-mnits'; did you mean 'dense-mnist'?",),
        ),
        (
            ["dense-mnist", "--data", "mnist-mni"],
            ("unknown data set 'mnist-mni'; did you mean 'mnist-mini'?",),
        ),
        (["60FC-10XX", "--data", "mnist-mini"], ("network '60FC-10XX': token 2 '10XX' must be",)),
        (["[/x]-10SM", "--data", "mnist-mini"], ("network '[/x]-10SM': token 1 '[/x]' must be",)),
        (["60FC-10SM"], ("unknown preset '60FC-10SM'",)),
        (
            ["dense-mnist", "--data", "mnist-mini", "--max-epochs", "0"],
            ("Training.max_epochs must be > 0 and finite, got 0",),
        ),
        (
            ["dense-mnist", "--data", "mnist-mini", "--learning-rate", "1e15"],
            ("training must keep a finite loss", "lower --learning-rate"),
        ),
    ],
)
def test_what_is_refused(run, arguments, words):
    run("train", *arguments, "-o", "net.safetensors").refused(*words)
    assert "net.safetensors" not in os.listdir()


def test_an_output_is_needed(run):
    answer = run("train", "dense-mnist")
    assert answer.code != 0
    assert "--output" in answer.err


def test_eval_gives_both_halves(run, trained, mini):
    scores = judge(feta.load(trained).model, mini)
    answer = run("eval", trained, "--json")
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    assert json.loads(answer.out) == {
        "network": "60FC-60FC-10SM",
        "data": "MNIST (10,000 training digits)",
        "accuracy": scores,
    }
    answer = run("eval", trained)
    assert f"{scores['test']:.2f} % test, {scores['validation']:.2f} % validation" in answer.out
    assert answer.out.count("\n") == 1


def test_eval_uses_the_normalisation_the_network_was_trained_with(run, trained):
    network = feta.load(trained)
    shifted = network.info.normalisation.__class__((0.9,), (0.01,))
    feta.save(network.with_model(network.model, normalisation=shifted), "shifted.safetensors")
    accuracies = [
        json.loads(run("eval", path, "--json").out)["accuracy"] for path in (trained, "shifted.safetensors")
    ]
    assert accuracies[0] != accuracies[1]


def test_eval_of_weights_that_do_not_fit_their_description(run, trained):
    network = feta.load(trained)
    feta.save(network.with_model(torch.nn.Linear(2, 2)), "odd.safetensors")
    run("eval", "odd.safetensors").refused("odd.safetensors must hold the weights of this model")
