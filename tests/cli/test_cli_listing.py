"""feta info, methods and data: what they list, to people and to programs."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

import feta
from feta.cli.history import history
from feta.pruners import METHODS
from feta_lab.data import NAMES
from feta_lab.data.files import EMBEDDED


def test_info_of_a_pruned_network(run, trained, pruned):
    found = run(f"info {pruned} --json").json()
    assert set(found) == {"file", "file_bytes", "network", "tensors"}
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert set(tensors) == set(feta.load(trained).model.state_dict())
    first = tensors["fc1.weight"]
    assert (first["nonzeros"], first["sparsity"], first["shape"]) == (4704, 0.9, [60, 784])
    assert first["dense_bytes"] / first["bytes"] > 9.5
    assert sum(tensor["bytes"] for tensor in found["tensors"]) < found["file_bytes"]
    assert found["network"]["pruning"]["method"] == "threshold"
    text = run(f"info {pruned}")
    text.says(
        "Network: 60FC-60FC-10SM trained on mnist-mini (preset dense-mnist, seed 0, 1 epochs)\n",
        "% validation; before pruning ",
        "\nPruned by threshold: 90 % zeros over fc1, fc2\n",
        "fc1.weight",
        "4704",
        f"{first['dense_bytes'] / first['bytes']:.1f}×",
    )
    assert "Refined" not in text.out
    assert "Retrained" not in text.out


def test_types_of_options_are_words(run):
    told = run("methods --verbose").out
    for words in (
        "--alps.rho 0.1  (float)",
        "--alps.refit pcg  (pcg or exact)",
        "--exact-obs.batch-bytes None  (int | None)",
    ):
        assert words in told
    assert "class" not in told
    kinds = {option["type"] for entry in run("methods --json").json()["methods"] for option in entry["options"]}
    assert not any("<" in kind or "typing" in kind for kind in kinds)


def test_names_stay_whole_where_no_terminal_cuts_them(run, pruned, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    run(f"info {pruned}").says("softmax.weight")


def test_help_is_about_the_command(run):
    listed = run("--help").out
    assert listed.index("prune") < listed.index("Laboratory") < listed.index(" train ")
    helps = {name: run(f"{name} --help").out for name in ("prune", "shrink", "speed")}
    for text in helps.values():
        assert "env var" not in text
        assert "default: False" not in text
        assert "FETA_PRUNE_SPARSITY" in text
    assert "What to prune on" not in helps["speed"]
    assert "--output" not in helps["speed"]
    assert ".pt2" in helps["shrink"]


def test_info_shows_only_the_options_that_are_not_the_default():
    about = {"method": "alps", "target_sparsity": {"fc1": 0.95, "fc2": 0.8}, "options": {"rho": 0.1, "ridge": 0.5}}
    assert list(history({"pruning": about})) == ["Pruned by alps: 95 % zeros in fc1, 80 % zeros in fc2; ridge 0.5"]
    about = {"method": "mine", "target_sparsity": 0.5, "options": {"a": 1}, "pattern": "2:4", "layers": ["a"]}
    assert list(history({"pruning": about})) == ["Pruned by mine: 50 % zeros over a, pattern 2:4; a 1"]


@pytest.mark.parametrize("odd", [None, 3, "text", [1], {"a": {}}, float("nan"), True])
def test_info_of_a_file_that_says_odd_things_of_itself(odd):
    keys = (
        "method",
        "target_sparsity",
        "options",
        "layers",
        "pattern",
        "refinement",
        "retraining",
        "compensated",
        "shrunk",
    )
    pruning = dict.fromkeys((*keys, "dense_accuracy"), odd)
    about = dict.fromkeys(("specification", "data", "seed", "epochs", "preset", "accuracy"), odd)
    assert all(isinstance(line, str) for line in history(about | {"pruning": pruning}))
    assert all(isinstance(line, str) for line in history(about | {"pruning": odd}))
    for part in ("refinement", "retraining"):
        said = dict.fromkeys(("steps", "loss", "support", "epochs", "goal", "tolerance", "stopped"), odd)
        assert all(isinstance(line, str) for line in history({"pruning": {part: said}}))


def test_info_of_a_file_of_another_program(run):
    save_file({"w": torch.eye(3)}, "x.safetensors")
    assert run("info x.safetensors --json").json()["network"] == {}
    run("info x.safetensors").says("w", "3×3", "6 of 9 values are zero (66.67 %)")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01."])
def test_info_refuses_what_is_no_network(run, tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    run(f"info {tmp_path / 'x'}").refused(str(tmp_path / "x"), "safetensors file")


def test_methods(run):
    found = run("methods --json").json()["methods"]
    assert [method["name"] for method in found] == list(METHODS)
    short, long = run("methods").out, run("methods -v").out
    assert long == run("methods --verbose").out
    assert "Formula" not in short
    assert "U = W ⊙ 1[|W| > t]" in long  # brackets are no markup
    for method in found:
        assert method["name"] in short
        assert f"{method['name']}  {method['summary']}\n" in long
        assert method["summary"] == METHODS[method["name"]].__doc__.splitlines()[0]
        for start in ("Formula:", "Cost:", "Source:"):
            assert any(line.startswith(start) for line in method["details"])
        for option in method["options"]:
            assert f"--{method['name']}.{option['name']} " in long


def test_data_list(run, tmp_path):
    found = run(f"data list --json --data-dir {tmp_path}").json()
    assert list(found) == list(NAMES)
    assert found["mnist-mini"]["found"]
    assert (found["mnist"]["found"], found["mnist"]["folder"]) == (False, None)
    assert str(tmp_path) in found["mnist"]["looked_in"][0]
    answer = run(f"data list --data-dir {tmp_path}")
    assert answer.code == 0
    assert all(name in answer.out for name in NAMES)
    assert "feta data fetch" in answer.err


def test_data_check_fails_for_a_spoilt_set(run, tmp_path, monkeypatch):
    assert run("data check mnist-mini --json").json()["ok"] is True
    run("data check mnist-mini").says("train-images-idx3-ubyte.gz")
    copy = shutil.copytree(EMBEDDED, tmp_path / "mini")
    monkeypatch.setattr("feta_lab.data.files.EMBEDDED", copy)
    (copy / "train-labels-idx1-ubyte.gz").write_bytes(b"\0\0\x08\x01")
    answer = run("data check mnist-mini --json")
    assert answer.code == 1
    assert json.loads(answer.out)["ok"] is False
    assert answer.err.startswith(f"feta: data set 'mnist-mini' in {copy} is not whole")


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_an_unknown_data_set(run, command):
    run(f"data {command} fashon-mnist").refused("unknown data set 'fashon-mnist'; did you mean 'fashion-mnist'?")


def test_info_of_a_pickle_offers_the_conversion(run):
    torch.save({"w": torch.ones(2)}, "w.pt")
    run("info w.pt").refused(
        "w.pt must be a safetensors file, got a pickle", "python -c ", "and then give w.safetensors"
    )
