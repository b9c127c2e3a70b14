"""feta shrink: smaller networks out of a network file, a model of one's own and a Hugging Face folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torch_pruning", reason="needs torch-pruning, pip install torch-pruning")

from own_models import rows, write_code
from test_cli_huggingface import write

import feta

FAST = "--effort fast --samples 200"


def test_a_network_file_that_every_command_reads(run, trained, mini):
    answer = run(f"shrink {trained} {FAST} -o small.safetensors --json").json()
    assert 0.5 <= 1 - answer["after"]["multiply_adds"] / answer["before"]["multiply_adds"] < 0.53
    assert answer["output"] == "small.safetensors"
    network = feta.load("small.safetensors")
    widths = {group["name"]: group["after"] for group in answer["groups"]}
    assert network.info.specification == f"{widths['fc1']}FC-{widths['fc2']}FC-10SM"
    assert (network.model.fc1.out_features, len(answer["kept"]["fc1"])) == (widths["fc1"], widths["fc1"])
    assert network.info.preset is None
    assert answer["file_bytes"] == {
        "dense": trained.stat().st_size,
        "shrunk": Path("small.safetensors").stat().st_size,
    }
    told = run("eval small.safetensors --json").json()["accuracy"]
    assert told == answer["accuracy"]["shrunk"] == network.info.accuracy
    assert told["test"] > answer["accuracy"]["dense"]["test"] - 15
    run("info small.safetensors").says("Shrunk from 60FC-60FC-10SM: 5", " % of the multiply-adds gone")
    run("prune small.safetensors --sparsity 0.5 -o both.safetensors").says("written to both.safetensors")
    assert feta.load("both.safetensors").info.specification == network.info.specification


def test_what_it_says(run, trained):
    answer = run(f"shrink {trained} {FAST} --share 0.3 --allocation uniform -o small.pt2")
    answer.says("% of the multiply-adds removed", "fc1", "test accuracy", "written to small.pt2: ")
    answer.says("left as it is: softmax: its outputs are the model's", "torch.export.load('small.pt2').module()")
    assert torch.export.load("small.pt2").module()(torch.randn(3, 1, 28, 28)).shape == (3, 10)


def test_a_model_of_ones_own(run):
    name = write_code()
    np.save("x.npy", np.random.default_rng(0).standard_normal((60, 3, 8, 8)).astype(np.float32))
    first = run(f"shrink {name}:Conv --data x.npy --effort fast --layers second -o a.pt2")
    assert first.code == 0
    assert "second" in first.out
    assert f"weights: as {name}:Conv gives them; --weights FILE for others" in first.out
    program, x = torch.export.load("a.pt2").module(), torch.randn(5, 3, 8, 8)
    assert program(x).shape == (5, 4)
    assert program.state_dict()["model.head.weight"].shape[1] < 8
    assert program.state_dict()["model.first.weight"].shape[0] == 8  # not asked for


def test_the_choice_of_one_run_is_that_of_another(run):
    name = write_code()
    np.save("x.npy", rows())
    first = run(f"shrink {name}:make --data x.npy --effort fast --share 0.4 --json")
    Path("kept.json").write_text("\n".join(line for line in first.out.splitlines() if line.startswith("{")))
    kept = json.loads(Path("kept.json").read_text())["kept"]
    again = run(f"shrink {name}:make --data x.npy --effort fast --keep kept.json --json")
    told = json.loads(again.out.splitlines()[-1])
    assert (told["kept"], told["share"], told["allocation"]) == (kept, None, "given")
    Path("own.json").write_text(json.dumps({"0": [1, 2, 3]}))
    own = run(f"shrink {name}:make --data x.npy --effort fast --keep own.json --json")
    assert json.loads(own.out.splitlines()[-1])["kept"] == {"0": [1, 2, 3]}


def test_a_hugging_face_folder(run):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    write(transformers, "bert")
    answer = run("shrink bert --data t.txt --share 0.2 --samples 40 --effort fast -o small.pt2 --json").json()
    inner = answer["kept"]["bert.encoder.layer.0.intermediate.dense"]
    weights = torch.export.load("small.pt2").state_dict
    assert weights["model.bert.encoder.layer.0.intermediate.dense.weight"].shape == (len(inner), 32)
    assert len(inner) < 64


def test_what_is_refused(run, trained):
    name = write_code()
    np.save("x.npy", rows())
    run(f"shrink {trained} --share 1.5").refused("--share must be", "1.5")
    run(f"shrink {trained} {FAST} --layers fc2").refused("feta: --share must be at most 0.0", "got 0.5; give 0.0")
    run(f"shrink {trained} --share 0.5 --keep a.json").refused("--share must not go with --keep")
    run(f"shrink {trained} --keep a.json").refused("cannot read a.json")
    Path("a.json").write_text("[1]")
    run(f"shrink {trained} --keep a.json").refused("--keep must be a JSON file such as", "got [1]")
    Path("a.json").write_text("{")
    run(f"shrink {trained} --keep a.json").refused("--keep must be a JSON file such as", "in a.json")
    Path("a.json").write_text('{"fc1": [0, 99]}')
    run(f"shrink {trained} {FAST} --keep a.json").refused("keep['fc1'] must be outputs from 0 to 59")
    run(f"shrink {trained} -o {trained}").refused("--output must differ from the input")
    run(f"shrink {trained} -o a.txt").refused("--output must end in .pt2 or .onnx or .safetensors", "a.txt")
    run(f"shrink {trained} --samples 0").refused("--samples must be >= 1")
    run(f"shrink {name}:make").refused("--data must be given to shrink")
    run(f"shrink {name}:make --data x.npy -o a.safetensors").refused("must end in .pt2 or .onnx for", "other shapes")
    assert not Path("a.pt2").exists()


def test_without_torch_pruning(run, trained, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch_pruning", None)
    run(f"shrink {trained}").refused("pip install torch-pruning")


def test_places_and_files_are_told_before_the_package_is_missed(run, trained, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch_pruning", None)
    Path("file").touch()
    run(f"shrink {trained} -o x.foo").refused("--output must end in")
    run(f"shrink {trained} -o file/x.pt2").refused("cannot write file/x.pt2")
    run(f"shrink {trained}").refused("python -m pip install -c constraints.txt '.[structured]'")
