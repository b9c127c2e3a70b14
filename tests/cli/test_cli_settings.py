"""feta.toml and the environment: what they set, what outranks them, and what they say to mistakes."""

import os
from pathlib import Path

import pytest


def unfolded(text: str) -> str:
    """What a frame says, on one line."""
    return " ".join(text.replace("│", " ").split())


def sparsity(run, trained, options="") -> float:
    return run(f"prune {trained} --json {options}").json()["target_sparsity"]


def test_a_file_in_this_folder_or_above(run, trained, monkeypatch):
    Path("feta.toml").write_text("[prune]\nsparsity = 0.6\nseed = 7\n")
    assert sparsity(run, trained) == 0.6
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert sparsity(run, trained) == 0.6


def test_the_command_line_outranks_the_environment_and_that_the_file(run, trained, monkeypatch):
    monkeypatch.setenv("FETA_PRUNE_SPARSITY", "0.75")
    assert sparsity(run, trained) == 0.75
    Path("feta.toml").write_text("[prune]\nsparsity = 0.95\n")
    assert sparsity(run, trained) == 0.75
    assert sparsity(run, trained, "--sparsity 0.5") == 0.5


def test_settings_of_one_command_do_not_reach_another(run, trained, monkeypatch):
    Path("feta.toml").write_text("[prune]\nsparsity = 0.95\n[train]\nmax_epochs = 1\n")
    monkeypatch.setenv("FETA_DATA", "/nowhere")  # where data sets are, not a setting of `feta data`
    for command in ("methods", f"info {trained}", "data list", f"eval {trained}"):
        assert run(command).code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[prune\n", "TOMLDecodeError"),
        ("[prune]\nsparsty = 0.5\n", "sparsty"),
        ('[prune]\nmode = "sideways"\n', "sideways"),
        ("[prun]\nsparsity = 0.5\n", "'prun'; did you mean 'prune'?"),
        ("sparsity = 0.5\n", "must have its settings below a command, such as [prune], got 'sparsity'"),
    ],
)
def test_mistakes_in_the_file(run, trained, text, words):
    Path("feta.toml").write_text(text)
    answer = run(f"prune {trained}")
    assert answer.code != 0
    assert words in unfolded(answer.err)
    assert "Traceback" not in answer.err


def test_a_mistake_in_a_file_above_names_that_file(run, trained, monkeypatch):
    Path("feta.toml").write_text("[prune]\nsparsty = 0.5\n")
    os.mkdir("below")
    above = os.path.realpath("feta.toml")
    monkeypatch.chdir("below")
    assert above in "".join(run(f"prune {trained}").err.replace("│", "").split())  # a long path takes several lines


def test_mistakes_in_the_environment(run, trained, monkeypatch):
    monkeypatch.setenv("FETA_PRUNE_SPARSITY", "1.5")
    run(f"prune {trained}").refused("must be in [0, 1), got 1.5")


@pytest.mark.parametrize(
    "line",
    [
        "retrain net.safetensors --epochs 1.5",
        "prune net.safetensors --samples 1.5",
        "reproduce table1 --quick --epochs 1.5",
        "train dense-mnist -o x.safetensors --seed 1.5",
    ],
)
def test_a_part_of_a_whole_is_refused(run, line):
    """Not rounded: 1.5 epochs would be 2 without a word."""
    answer = run(line)
    assert answer.code == 2
    assert "must be a whole number, got '1.5'" in answer.err


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_something_else_of_that_name(run, kind):
    os.mkdir("feta.toml") if kind == "folder" else os.mkfifo("feta.toml")
    answer = run("prune net.safetensors")
    assert answer.code != 0
    assert "must be a file of settings" in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "value", ["[" * 5000 + "]" * 5000, "1" * 5000, "inf", '"\\u001b[2J"', '"\\u202e"', "[" * 70 + "]" * 70]
)
def test_limits_of_the_file(run, value):
    Path("feta.toml").write_text(f"[prune]\nsparsity = {value}\n")
    answer = run("prune net.safetensors")
    assert answer.code != 0
    assert "must be a file of settings in TOML" in " ".join(answer.err.split())
    assert "\x1b[2J" not in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("name", ["FETA_PRUNE_SPARSTY", "FETA_PRUNE_SPARSITYY", "FETA_PRUNE_SPARSITY_"])
def test_a_variable_that_no_option_takes_is_a_mistake(run, trained, monkeypatch, name):
    monkeypatch.setenv(name, "0.5")
    answer = run(f"prune {trained}")
    assert (answer.code, answer.out) == (2, "")
    said = f"unknown environment variable '{name}'; did you mean 'FETA_PRUNE_SPARSITY'?"
    assert said in unfolded(answer.err)
    assert run("methods").code == 0  # it is no setting of this command


def test_options_of_a_method_may_come_from_the_environment(run, trained, monkeypatch):
    monkeypatch.setenv("FETA_PRUNE_WANDA_SCOPE", "layer")
    found = run(f"prune {trained} --method wanda --sparsity 0.3 --samples 2000 --json").json()
    assert found["options"]["scope"] == "layer"
