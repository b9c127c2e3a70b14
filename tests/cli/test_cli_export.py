"""feta export: files for others, from a network file and from a model of one's own."""

import pytest
import torch
from safetensors.torch import load_file

import feta


def test_a_network_file_in_three_forms(run, pruned, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime, pip install onnxruntime")
    pytest.importorskip("onnxscript", reason="needs onnxscript, pip install onnxscript")
    answer = run(f"export {pruned} --onnx a.onnx --torch-export a.pt2 --safetensors a.safetensors --json").json()
    assert [found["form"] for found in answer["files"]] == ["onnx", "torch_export", "safetensors"]
    assert all(found["difference"] < 1e-5 for found in answer["files"])
    model, x = feta.load(pruned).model, torch.randn(3, 1, 28, 28)
    assert torch.allclose(torch.export.load("a.pt2").module()(x), model(x))
    assert torch.equal(load_file("a.safetensors")["fc1.weight"], model.fc1.weight)


def test_what_it_says(run, pruned):
    answer = run(f"export {pruned} --safetensors net.safetensors")
    answer.says("safetensors: net.safetensors, ", " kB, largest relative difference of the outputs 0.0e+00")


def test_a_model_of_ones_own(run, tmp_path, monkeypatch):
    (tmp_path / "here" / "own_net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())\n"
    )
    run("export own_net:make --input 3,8,8 --torch-export net.pt2").says("torch.export: net.pt2")
    assert torch.export.load("net.pt2").module()(torch.randn(5, 3, 8, 8)).shape == (5, 4, 6, 6)
    run("export own_net:make --torch-export new.pt2").refused("--input or --data must say what own_net:make takes")
    run("export own_net:make --input 3,a --torch-export new.pt2").refused("--input must be whole numbers >= 1", "3,a")
    answer = run("export own_net:make --input 1,8,8 --torch-export new.pt2")
    answer.refused("--input must be the shape of one sample, such as 3,8,8, got 1,8,8 for own_net:make")
    line = "export own_net:make --input 3,8,8 --torch-export net.pt2"
    run(line).refused("--torch-export must be a new file", "--force")
    run(f"{line} --force").says("net.pt2")


def test_what_is_refused(run, pruned):
    run(f"export {pruned}").refused("give --onnx, --torch-export or --safetensors")
    run(f"export {pruned} --onnx a.x --torch-export a.x").refused("--onnx must differ from the input and other")
    run(f"export {pruned} --safetensors {pruned}").refused("--safetensors must differ from the input")
    run("export nothing.safetensors --safetensors a.safetensors").refused("nothing.safetensors")
