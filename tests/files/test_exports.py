"""Files that other programs run: held to the model's outputs, also for other numbers of samples."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import feta
from feta import plugins
from feta.files import exports
from feta.files.exports import difference, export
from nets import convnet, mlp

ROWS = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(0))


class Named(nn.Module):
    """Two inputs by name, a mapping out, and one weight under two names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens, mask):
        return {"logits": self.head(self.table(tokens) * mask[..., None])}


def onnx_outputs(path, *inputs):
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, pip install onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})[0])


@pytest.fixture
def pruned():
    return feta.prune(mlp(12, 20, 16, 4), ROWS, 0.8, "threshold").model


def test_onnx_gives_the_models_outputs_for_any_number_of_samples(tmp_path, pruned):
    pytest.importorskip("onnxscript", reason="needs onnxscript, pip install onnxscript")
    path = tmp_path / "net.onnx"
    (found,) = export(pruned, ROWS[:1], onnx=path)
    assert (found.form, found.bytes) == ("onnx", path.stat().st_size)
    assert found.difference < 1e-5
    for rows in (ROWS, ROWS[:1]):
        assert torch.allclose(onnx_outputs(path, rows), pruned(rows), atol=1e-5)
    assert list(tmp_path.iterdir()) == [path]


def test_onnx_with_batch_norms_and_groups(tmp_path):
    pytest.importorskip("onnxscript", reason="needs onnxscript, pip install onnxscript")
    norm = nn.BatchNorm2d(4)
    norm.running_mean.uniform_(-1, 1)
    model = convnet(216, norm=norm).train()  # what a model does in use is exported, whatever its mode
    export(model, IMAGES[:2], onnx=tmp_path / "net.onnx")
    assert model.training
    assert torch.allclose(onnx_outputs(tmp_path / "net.onnx", IMAGES), model.eval()(IMAGES), atol=1e-5)


def test_torch_export_runs_without_the_models_code(tmp_path, pruned):
    (found,) = export(pruned, ROWS, torch_export=tmp_path / "net.pt2")
    assert found.difference == 0
    again = torch.export.load(tmp_path / "net.pt2").module()
    for rows in (ROWS, ROWS[:1]):
        assert torch.allclose(again(rows), pruned(rows))


def test_safetensors_is_the_plain_state_dict(tmp_path, pruned):
    (found,) = export(pruned, ROWS, safetensors=tmp_path / "deep" / "net.safetensors")
    tensors = load_file(found.path)
    assert set(tensors) == set(pruned.state_dict())
    assert all(torch.equal(value, tensors[name]) for name, value in pruned.state_dict().items())


def test_inputs_by_name_and_shared_weights(tmp_path):
    model = Named()
    batch = {"tokens": torch.randint(11, (3, 4)), "mask": torch.ones(3, 4)}
    places = {"torch_export": tmp_path / "net.pt2", "safetensors": tmp_path / "net.safetensors"}
    assert [found.difference for found in export(model, batch, **places)] == [0, 0]
    assert list(load_file(places["safetensors"])) == ["table.weight"]
    again = torch.export.load(places["torch_export"]).module()
    assert torch.allclose(again(batch["tokens"], batch["mask"]), model(**batch)["logits"])


def test_a_smaller_network_leaves_too(tmp_path):
    pytest.importorskip("torch_pruning", reason="needs torch-pruning, pip install torch-pruning")
    small = feta.shrink(mlp(12, 20, 4), ROWS.repeat(8, 1), 0.5, effort="fast").model
    export(small, ROWS, torch_export=tmp_path / "small.pt2")
    assert torch.allclose(torch.export.load(tmp_path / "small.pt2").module()(ROWS), small(ROWS))


def test_half_precision_and_the_model_is_not_changed(tmp_path):
    model = mlp(12, 20, 4).half()
    before = copy.deepcopy(model.state_dict())
    (found,) = export(model, ROWS, safetensors=tmp_path / "net.safetensors")
    assert load_file(found.path)["fc1.weight"].dtype == torch.float16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_anybody_may_read_what_is_exported(tmp_path, pruned):
    (tmp_path / "any").touch()
    (found,) = export(pruned, ROWS, safetensors=tmp_path / "net.safetensors")
    assert found.path.stat().st_mode == (tmp_path / "any").stat().st_mode


def test_nothing_is_left_of_a_file_that_is_not_the_model(tmp_path, monkeypatch, pruned):
    run = exports.WRITERS["safetensors"][1]
    wrong = (exports.WRITERS["safetensors"][0], lambda *given: run(*given) + 1)
    monkeypatch.setattr(exports, "WRITERS", {"safetensors": wrong})
    with pytest.raises(feta.FileError, match=r"must give the model's outputs, got a relative difference of"):
        export(pruned, ROWS, safetensors=tmp_path / "net.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be(tmp_path, pruned):
    with pytest.raises(feta.ConfigError, match=r"forms out of onnx, torch_export, safetensors, got tflite"):
        export(pruned, ROWS, tflite=tmp_path / "net")
    with pytest.raises(feta.ConfigError, match=r"must be asked for a form, such as onnx='model.onnx', out of onnx"):
        export(pruned, ROWS)
    (tmp_path / "file").write_text("")
    with pytest.raises(feta.FileError, match="cannot write"):
        export(pruned, ROWS, safetensors=tmp_path / "file" / "net.safetensors")


def test_a_model_that_torch_cannot_export(tmp_path):
    class Chooses(nn.Linear):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > 0 else x[:, :2]

    with pytest.raises(feta.ModelError, match="model must be one that torch can export"):
        export(Chooses(12, 2), ROWS, torch_export=tmp_path / "net.pt2")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(tmp_path, monkeypatch, pruned):
    def missing(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(plugins.importlib, "import_module", missing)
    with pytest.raises(feta.ConfigError, match=r"must have the package onnxruntime.*pip install onnx.* onnxruntime"):
        export(pruned, ROWS, onnx=tmp_path / "net.onnx")


def test_difference():
    one = torch.tensor([[2.0, -4.0]])
    assert difference(one, one) == 0
    assert difference(one + 0.4, one) == pytest.approx(0.1)
    assert difference(one[:, :1], one) == float("inf")
    assert difference(one * 0, one * 0) == 0
