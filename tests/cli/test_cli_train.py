"""feta train and eval: files, records, and resuming after a kill."""

import json
import os
from pathlib import Path

import pytest
import torch

import feta
from feta.tuning.loop import Loop
from feta_lab.data import Normalisation
from feta_lab.judge import judge
from feta_lab.records import read

TRAIN = "train dense-mnist --data mnist-mini --epochs"


def test_train_writes_a_network_and_a_record(run, mini, tmp_path):
    path = tmp_path / "net.safetensors"
    found = run(f"{TRAIN} 1 --json --seed 4 -o {path} --records {tmp_path / 'all.jsonl'}").json()
    network = feta.load(path)
    assert found["accuracy"] == network.info.accuracy == judge(network.model, mini)
    assert found["accuracy"]["test"] > 70
    assert found["file_bytes"] == path.stat().st_size
    assert (network.info.preset, network.info.seed, network.info.data) == ("dense-mnist", 4, "mnist-mini")
    (entry,) = read(tmp_path / "all.jsonl")
    assert (entry["kind"], entry["seed"], entry["config"]["max_epochs"]) == ("train", 4, 1)
    assert str(tmp_path) not in json.dumps(entry)
    assert {path.name for path in tmp_path.iterdir()} == {"here", "net.safetensors", "all.jsonl"}
    run(f"{TRAIN} 1 -o {path}").refused("--output must be a new file", "--force replaces it")


def test_the_same_command_gives_the_same_words_and_file(run):
    said = [run(f"{TRAIN} 1 -o {name}.safetensors") for name in ("a", "b")]
    said[0].says("60FC-60FC-10SM on MNIST (10,000 training digits): ", "% validation, 1 epochs\n")
    said[0].says("\nwritten to a.safetensors (171.")
    assert said[0].out.replace("to a.", "to b.") == said[1].out
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def test_a_killed_run_goes_on(run, monkeypatch):
    run(f"{TRAIN} 2 -o whole.safetensors")
    whole, epochs = Loop._one_pass, []

    def killed(self):
        if self.number == 1:
            raise KeyboardInterrupt
        return whole(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_one_pass", killed)
        answer = run(f"{TRAIN} 2 -o net.safetensors")
    assert (answer.code, answer.err) == (130, "feta: interrupted; the same command goes on where it stopped\n")
    assert sorted(os.listdir()) == ["net.safetensors.partial", "whole.safetensors"]
    monkeypatch.setattr(Loop, "_one_pass", lambda *a: epochs.append(1) or whole(*a))
    assert run(f"{TRAIN} 2 -o net.safetensors").code == 0
    assert len(epochs) == 1
    assert Path("net.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()
    assert "net.safetensors.partial" not in os.listdir()


def test_a_broken_checkpoint_is_refused(run):
    Path("net.safetensors.partial").write_bytes(b"")
    run(f"{TRAIN} 1 -o net.safetensors").refused("net.safetensors.partial must be a whole safetensors file")


def test_a_network_in_the_papers_notation(run):
    run("train 16FC-10SM --data mnist-mini --epochs 1 -o net.safetensors").says()
    assert feta.load("net.safetensors").info.preset is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dense-mnits", "unknown preset 'dense-mnits'; did you mean 'dense-mnist'?"),
        ("dense-mnits --data mnist-mini", "unknown preset 'dense-mnits'; did you mean 'dense-mnist'?"),
        ("dense-mnist --data mnist-mni", "unknown data set 'mnist-mni'; did you mean 'mnist-mini'?"),
        ("60FC-10XX --data mnist-mini", "network '60FC-10XX': token 2 '10XX' must be"),
        ("[/x]-10SM --data mnist-mini", "network '[/x]-10SM': token 1 '[/x]' must be"),
        ("60FC-10SM", "unknown preset '60FC-10SM'"),
        ("dense-mnist --data mnist-mini --epochs 0", "--epochs must be > 0 and finite, got 0"),
        ("dense-mnist --data mnist-mini --learning-rate 1e15", "training must keep a finite loss"),
    ],
)
def test_what_is_refused(run, arguments, words):
    run(f"train {arguments} -o net.safetensors").refused(words)
    assert "net.safetensors" not in os.listdir()


def test_eval_gives_both_halves(run, trained, mini):
    scores = judge(feta.load(trained).model, mini)
    told = {"network": "60FC-60FC-10SM", "data": "MNIST (10,000 training digits)", "accuracy": scores}
    assert run(f"eval {trained} --json").json() == told
    answer = run(f"eval {trained}")
    answer.says(f"{scores['test']:.2f} % test, {scores['validation']:.2f} % validation")
    assert answer.out.count("\n") == 1


def test_eval_uses_the_normalisation_the_network_was_trained_with(run, trained):
    network = feta.load(trained)
    feta.save(network.with_model(network.model, normalisation=Normalisation((0.9,), (0.01,))), "shifted.safetensors")
    found = [run(f"eval {path} --json").json()["accuracy"] for path in (trained, "shifted.safetensors")]
    assert found[0] != found[1]


def test_eval_of_weights_that_do_not_fit_their_description(run, trained):
    network = feta.load(trained)
    feta.save(network.with_model(torch.nn.Linear(2, 2)), "odd.safetensors")
    run("eval odd.safetensors").refused("odd.safetensors must hold the weights of this model")
