"""feta info, methods and data: what they list, to people and to programs."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import save_file

import feta
from feta.pruners import METHODS
from feta_lab.data import NAMES
from feta_lab.data.files import EMBEDDED


def test_info_of_a_pruned_network(run, trained):
    run("prune", trained, "-o", "out.safetensors")
    found = json.loads(run("info", "out.safetensors", "--json").out)
    assert set(found) == {"file", "file_bytes", "network", "tensors"}
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert set(tensors) == set(feta.load(trained).model.state_dict())
    first = tensors["fc1.weight"]
    assert (first["nonzeros"], first["sparsity"], first["shape"]) == (4704, 0.9, [60, 784])
    assert first["dense_bytes"] / first["bytes"] > 7
    assert sum(tensor["bytes"] for tensor in found["tensors"]) < found["file_bytes"]
    assert found["network"]["pruning"]["method"] == "threshold"
    text = run("info", "out.safetensors").out
    for words in (
        "specification: 60FC-60FC-10SM",
        "pruned by: threshold to 0.9",
        "fc1.weight",
        "4704",
        "7.6×",
    ):
        assert words in text


def test_info_of_a_file_of_another_program(run):
    import torch

    save_file({"w": torch.eye(3)}, "x.safetensors")
    answer = run("info", "x.safetensors", "--json")
    assert json.loads(answer.out)["network"] == {}
    assert run("info", "x.safetensors").code == 0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01."])
def test_info_refuses_what_is_no_network(run, tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    run("info", tmp_path / "x").refused(str(tmp_path / "x"), "safetensors file")


def test_methods_as_json(run):
    answer = run("methods", "--json")
    assert (answer.err, answer.out.count("\n")) == ("", 1)
    found = json.loads(answer.out)["methods"]
    assert [method["name"] for method in found] == list(METHODS)
    for method in found:
        assert method["summary"]
        assert any(line.startswith("Formula:") for line in method["details"])
        assert any(line.startswith("Cost:") for line in method["details"])
        assert any(line.startswith("Source:") for line in method["details"])


def test_methods_for_people(run):
    short, long = run("methods").out, run("methods", "--verbose").out
    for name, method in METHODS.items():
        summary = method.__doc__.splitlines()[0]
        assert name in short
        assert f"{name}  {summary}\n" in long
    assert "Formula" not in short
    assert "U = W ⊙ 1[|W| > t]" in long  # brackets are no markup


def test_methods_verbose_shows_every_option_as_it_is_typed(run):
    long = run("methods", "-v").out
    for entry in json.loads(run("methods", "--json").out)["methods"]:
        for option in entry["options"]:
            assert f"--{entry['name']}.{option['name']} " in long


def test_data_list(run, tmp_path):
    found = json.loads(run("data", "list", "--json", "--data-dir", tmp_path).out)
    assert list(found) == list(NAMES)
    assert found["mnist-mini"]["found"]
    assert not found["mnist"]["found"]
    assert found["mnist"]["folder"] is None
    assert str(tmp_path) in found["mnist"]["looked_in"][0]
    answer = run("data", "list", "--data-dir", tmp_path)
    assert answer.code == 0
    assert all(name in answer.out for name in NAMES)
    assert answer.err == "Get a missing one with: feta data fetch NAME\n"


def test_data_check(run):
    answer = run("data", "check", "mnist-mini", "--json")
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 1)
    assert json.loads(answer.out)["ok"] is True
    assert "train-images-idx3-ubyte.gz" in run("data", "check", "mnist-mini").out


def test_data_check_of_a_spoilt_set_fails(run, tmp_path, monkeypatch):
    copy = shutil.copytree(EMBEDDED, tmp_path / "mini")
    monkeypatch.setattr("feta_lab.data.files.EMBEDDED", copy)
    (copy / "train-labels-idx1-ubyte.gz").write_bytes(b"\0\0\x08\x01")
    answer = run("data", "check", "mnist-mini", "--json")
    assert answer.code == 1
    assert json.loads(answer.out)["ok"] is False
    assert answer.err.startswith(f"feta: data set 'mnist-mini' in {copy} is not whole")


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_an_unknown_data_set(run, command):
    run("data", command, "fashon-mnist").refused("unknown data set 'fashon-mnist'; did you mean 'fashion-mnist'?")
