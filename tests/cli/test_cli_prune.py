"""feta prune: its contract with programs, its files and records, and every refusal in one line."""

from __future__ import annotations

import errno
import json
import os
import pickle
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import feta
from feta.cli.method_options import MethodOptions
from feta.cli.prune import parse_sparsity
from feta.engine.prune import DEFAULT_METHOD
from feta.errors import ConfigError
from feta.pruners import METHODS
from feta_lab import store
from feta_lab.judge import judge
from feta_lab.records import read

KEYS = {
    "method",
    "target_sparsity",
    "sparsity",
    "seconds",
    "device",
    "seed",
    "options",
    "layers",
    "refinement",
    "accuracy",
    "file_bytes",
    "allocation",
}
LAYER_KEYS = {"name", "shape", "nonzeros", "sparsity", "relative_error", "seconds"}


def test_json_is_one_object_with_exactly_the_keys(run, trained, mini):
    answer = run("prune", trained, "--sparsity", "0.8", "--json", "--seed", "3", "-o", "out.safetensors")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("\n") == 1
    found = json.loads(answer.out)
    assert set(found) >= KEYS
    assert (found["method"], found["target_sparsity"], found["seed"]) == ("threshold", 0.8, 3)
    assert found["device"] in ("cpu", "cuda")
    assert found["sparsity"] == pytest.approx(0.8)
    assert [layer["name"] for layer in found["layers"]] == ["fc1", "fc2"]
    for layer in found["layers"]:
        assert set(layer) >= LAYER_KEYS
    assert [layer["nonzeros"] for layer in found["layers"]] == [9408, 720]
    pruned = feta.load("out.safetensors")
    assert found["accuracy"] == {
        "dense": judge(feta.load(trained).model, mini),
        "pruned": judge(pruned.model, mini),
    }
    assert set(found["accuracy"]["pruned"]) == {"validation", "test"}
    assert found["file_bytes"] == {
        "dense": trained.stat().st_size,
        "pruned": os.path.getsize("out.safetensors"),
    }


def test_without_an_output_nothing_but_the_record_is_written(run, trained):
    found = json.loads(run("prune", trained, "--json").out)
    assert set(found) == KEYS
    assert os.listdir() == ["feta-records.jsonl"]
    assert found["file_bytes"]["pruned"] < found["file_bytes"]["dense"] / 6


def test_the_table_shows_layers_accuracy_and_size(run, trained):
    answer = run("prune", trained, "--output", "deep/out.safetensors")
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "fc1",
        "60×784",
        "4704",
        "90.00 %",
        "test accuracy",
        "smaller",
        "written to deep/out.safetensors",
    ):
        assert words in answer.out
    assert os.path.exists("deep/out.safetensors")


def test_the_record_tells_the_run_and_not_the_machine(run, trained, tmp_path):
    run(
        "prune",
        trained,
        "--json",
        "-o",
        tmp_path / "out" / "out.safetensors",
        "--layers",
        "fc2",
        "--compensate",
    )
    (entry,) = read(tmp_path / "out" / "feta-records.jsonl")
    assert entry["kind"] == "prune"
    assert entry["config"]["network"] == trained.name
    assert (entry["config"]["layers"], entry["config"]["compensate"]) == (["fc2"], True)
    assert entry["metrics"]["compensated"] == {"softmax": "ok"}
    text = json.dumps(entry)
    assert str(tmp_path) not in text
    assert str(trained.parent) not in text


def test_records_go_where_they_are_asked(run, trained):
    run("prune", trained, "--json", "--records", "mine/all.jsonl")
    run("prune", trained, "--json", "--records", "mine/all.jsonl", "--sparsity", "0.5")
    assert [entry["config"]["sparsity"] for entry in read(Path("mine/all.jsonl"))] == ["0.9", "0.5"]


def test_layers_sparsities_and_modes(run, trained):
    found = json.loads(run("prune", trained, "--json", "--sparsity", "fc1=0.95,fc2=0.5").out)
    assert found["target_sparsity"] == {"fc1": 0.95, "fc2": 0.5}
    assert [layer["nonzeros"] for layer in found["layers"]] == [2352, 1800]
    found = json.loads(
        run(
            "prune",
            trained,
            "--json",
            "--allocation",
            "global-magnitude",
            "--mode",
            "parallel",
            "--samples",
            "50",
        ).out
    )
    assert sum(layer["nonzeros"] for layer in found["layers"]) == 5064
    found = json.loads(run("prune", trained, "--json", "--layers", "fc2", "--layers", "soft*").out)
    assert [layer["name"] for layer in found["layers"]] == ["fc2", "softmax"]


def test_a_pruned_network_can_be_pruned_further(run, trained):
    run("prune", trained, "-o", "a.safetensors", "--sparsity", "0.5")
    found = json.loads(run("prune", "a.safetensors", "-o", "b.safetensors", "--sparsity", "0.9", "--json").out)
    assert found["layers"][0]["nonzeros"] == 4704


def test_an_overwritten_output_is_replaced(run, trained):
    Path("out.safetensors").write_text("something else")
    assert run("prune", trained, "-o", "out.safetensors").code == 0
    assert feta.load("out.safetensors").info.pruning["method"] == "threshold"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("1.5", ("--sparsity must be in [0, 1), got 1.5", "write 0.015 for 1.5 %")),
        ("90", ("--sparsity must be in [0, 1), got 90", "write 0.9 for 90 %")),
        ("-0.1", ("--sparsity must be in [0, 1), got -0.1",)),
        ("1", ("--sparsity must be in [0, 1), got 1",)),
        ("nan", ("--sparsity must be in [0, 1), got nan",)),
        ("much", ("--sparsity must be a number in [0, 1), got 'much'",)),
        ("fc1=2", ("--sparsity fc1 must be in [0, 1), got 2",)),
        ("fc1=a", ("--sparsity fc1 must be a number",)),
        ("fc1=0.5,0.9", ("--sparsity 0.9 must be a number",)),
        ("fc9=0.5", ("sparsity must name layers that can be pruned, got 'fc9'", "fc1")),
    ],
)
def test_sparsities_that_are_refused(run, trained, given, words):
    run("prune", trained, f"--sparsity={given}").refused(*words)


def test_parse_sparsity():
    assert parse_sparsity("0.9") == 0.9
    assert parse_sparsity("fc1=0.95, conv*=0.5") == {"fc1": 0.95, "conv*": 0.5}
    with pytest.raises(ConfigError, match="must be a number"):
        parse_sparsity("=")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "thresold"], ("unknown method 'thresold'; did you mean 'threshold'?",)),
        (
            ["--layers", "fc9"],
            ("layers must name layers that can be pruned, got 'fc9'", "'fc1', 'fc2'"),
        ),
        (["--allocation", "uniforn"], ("unknown allocation 'uniforn'; did you mean 'uniform'?",)),
        (["--device", "gpuu"], ("--device must be a device torch can use here, got 'gpuu'",)),
        (["--samples", "0"], ("--samples must be >= 1, got 0",)),
        (["--threshold.speed", "3"], ("unknown option of threshold 'speed'",)),
    ],
)
def test_options_that_are_refused(run, trained, arguments, words):
    run("prune", trained, *arguments).refused(*words)


def test_nan_weights_are_refused_with_the_layers_name(run, trained):
    network = feta.load(trained)
    with torch.no_grad():
        network.model.fc2.weight[0, 0] = float("nan")
    feta.save(network, "nan.safetensors")
    answer = run("prune", "nan.safetensors", "-o", "out.safetensors")
    answer.refused("fc2: weights must be finite, got 1 NaN or infinite of 3600")
    assert answer.err.count("fc2") == 1
    assert "out.safetensors" not in os.listdir()


def spoil_cut(path, content):
    path.write_bytes(content[: len(content) // 2])


def spoil_text(path, content):
    path.write_text("I am a network, honestly")


def spoil_pickle(path, content):
    path.write_bytes(pickle.dumps({"fc1.weight": [1.0]}))


def spoil_torch(path, content):
    torch.save({"fc1.weight": torch.ones(2)}, path)


def spoil_foreign(path, content):
    save_file({"fc1.weight": torch.ones(2)}, path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_cut, "must be a whole safetensors file"),
        (spoil_text, "must be a whole safetensors file"),
        (spoil_pickle, "got a pickle or a zip archive, which feta never loads"),
        (spoil_torch, "got a pickle or a zip archive, which feta never loads"),
        (spoil_foreign, "must describe its network"),
    ],
)
@pytest.mark.parametrize("command", ["prune", "eval"])
def test_files_that_are_refused(run, trained, tmp_path, spoil, words, command):
    path = tmp_path / "spoilt.safetensors"
    spoil(path, trained.read_bytes())
    run(command, path).refused(str(path), words)


def test_no_such_file(run):
    run("prune", "none.safetensors").refused("cannot read none.safetensors: No such file or directory")


@pytest.mark.parametrize("way", ["same path", "dotted path", "symlink to the input", "input is a symlink"])
def test_the_output_must_not_be_the_input(run, trained, way):
    content = trained.read_bytes()
    given, output = Path("a.safetensors"), Path("a.safetensors")
    given.write_bytes(content)
    if way == "dotted path":
        Path("sub").mkdir()
        output = Path("sub/../a.safetensors")
    if way == "symlink to the input":
        output = Path("link.safetensors")
        output.symlink_to(given)
    if way == "input is a symlink":
        output = Path("a.safetensors")
        given = Path("link.safetensors")
        given.symlink_to(output)
    run("prune", given, "-o", output).refused("--output must differ from the input")
    assert Path("a.safetensors").read_bytes() == content


def fail(code: int):
    def raising(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return raising


def test_no_permission_is_said_before_the_work(run, trained, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", fail(errno.EACCES))
    monkeypatch.setattr("feta_lab.jobs.prune", lambda *a, **k: pytest.fail("it must not get so far"))
    run("prune", trained, "-o", "out.safetensors").refused("cannot write out.safetensors: Permission denied")
    run("prune", trained).refused("cannot write feta-records.jsonl: Permission denied")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(run, trained, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    run("prune", trained, "-o", folder / "out.safetensors").refused("Permission denied")


def test_a_full_disk_is_one_line_and_leaves_no_file(run, trained, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    run("prune", trained, "-o", "out.safetensors").refused("cannot write out.safetensors: No space left on device")
    assert os.listdir() == []


def test_an_output_below_a_file(run, trained):
    Path("file").touch()
    run("prune", trained, "-o", "file/out.safetensors").refused("cannot write file/out.safetensors")


def test_threshold_needs_no_data_and_says_so(run, trained, tmp_path):
    network = feta.load(trained)
    elsewhere = replace(network.info, data="cifar-10")
    feta.save(store.Network(network.model, elsewhere), "net.safetensors")
    answer = run("prune", "net.safetensors", "--json", "--data-dir", tmp_path / "none")
    assert answer.code == 0
    assert json.loads(answer.out)["accuracy"] is None
    assert answer.err.startswith("feta: warning: accuracy is not measured: ")
    table = run("prune", "net.safetensors", "--data-dir", tmp_path / "none")
    assert table.code == 0
    assert "test accuracy" not in table.out


def test_brackets_in_a_path_are_no_markup(run, trained, tmp_path):
    answer = run("prune", trained, "-o", tmp_path / "runs[/bold]" / "[red]" / "out.safetensors")
    assert answer.code == 0
    assert f"written to {tmp_path}/runs[/bold]/[red]/out.safetensors\n" in answer.out


def test_the_default_method_is_that_of_the_library(run, trained, monkeypatch):
    monkeypatch.delenv("FETA_PRUNE_METHOD")
    found = json.loads(run("prune", trained, "--json", "--samples", "200").out)
    assert found["method"] == DEFAULT_METHOD


def test_every_method_has_its_options_on_the_command_line():
    assert {field.name.replace("_", "-") for field in fields(MethodOptions)} == set(METHODS)
