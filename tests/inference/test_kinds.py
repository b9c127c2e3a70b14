"""Every kind of layer gives the outputs of the dense one, against float64, and lives like any module."""

import copy
import io
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from feta.errors import ModelError
from feta.inference import calls
from feta.inference.bitmap import BitmapLinear
from feta.inference.candidates import CANDIDATES
from sparse_layers import reference, relative, sparse_linear, zeroed

CPU = torch.device("cpu")
OWN = pytest.mark.skipif(calls.kernels() is None, reason="numba is not installed")
ON_CPUS = [kind for kind in CANDIDATES if kind not in ("delta", "2:4")]  # test_gpu_kernels.py, test_two_four.py
KINDS = [pytest.param(kind, marks=OWN if kind in ("groups", "bitmap") else ()) for kind in ON_CPUS]
BATCHES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 256)


def made(kind: str, layer: nn.Module) -> nn.Module:
    if kind == "trimmed":  # only for layers with dead inputs or outputs
        layer.weight[1] = 0
        layer.weight[:, 2] = 0
    if kind == "bitmap":  # not offered for layers with nothing but zeros
        return BitmapLinear(layer)
    form = CANDIDATES[kind](layer, CPU, layer.weight.dtype)
    assert form is not None
    return form


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7, 5), (16, 16), (33, 50), (100, 3), (5, 130), (784, 61)])
def test_outputs(kind, shape):
    layer = sparse_linear(*shape)
    form = made(kind, layer)
    for batch in BATCHES:
        x = torch.randn(batch, shape[0])
        y = form(x)
        assert y.shape == (batch, shape[1])
        assert y.dtype == torch.float32
        assert relative(y, reference(layer, x)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_of_inputs(kind):
    layer = sparse_linear(40, 30)
    form = made(kind, layer)
    wide = torch.randn(6, 80)
    for x in (torch.randn(40), torch.randn(3, 5, 40), torch.randn(40, 9).t(), wide[:, ::2], torch.randn(0, 40)):
        y = form(x)
        assert y.shape == (*x.shape[:-1], 30)
        assert relative(y, reference(layer, x)) < 1e-5
    with pytest.raises(ModelError, match="must have 40 features, got the shape"):
        form(torch.randn(2, 41))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "trimmed" not in str(kind)])
@pytest.mark.parametrize("bias", [True, False])
def test_empty_rows_and_a_layer_of_zeros(kind, bias):
    layer = sparse_linear(20, 11, bias=bias)
    layer.weight[[0, 3, 10]] = 0
    layer.weight[:, [0, 19]] = 0
    x = torch.randn(5, 20)
    assert relative(made(kind, layer)(x), reference(layer, x)) < 1e-5
    layer.weight.zero_()
    wanted = reference(layer, x)
    for rows in (x, x[:1]):
        assert torch.allclose(made(kind, layer)(rows).double(), wanted[: len(rows)])


@pytest.mark.parametrize("kind", KINDS)
def test_copies_saves_and_loads(kind):
    layer, other = sparse_linear(24, 18), sparse_linear(24, 18)
    form, x = made(kind, layer), torch.randn(4, 24)
    y = form(x)
    assert torch.equal(copy.deepcopy(form)(x), y)
    buffer = io.BytesIO()
    torch.save(form, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), y)
    other.weight.mul_(2)
    target = made(kind, other)
    assert not torch.equal(target(x), y)
    target.load_state_dict(form.state_dict())
    assert torch.equal(target(x), y)
    target.load_state_dict({name: tensor.clone() for name, tensor in form.state_dict().items()}, assign=True)
    assert torch.equal(target(x), y)


@pytest.mark.parametrize("kind", KINDS)
def test_the_dense_weight_can_be_had_back(kind):
    layer = sparse_linear(50, 21)
    form = made(kind, layer)
    assert torch.equal(form.weight, layer.weight)
    assert torch.equal(form.bias, layer.bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_in_another_dtype(kind, dtype):
    layer = sparse_linear(24, 18)
    form = made(kind, layer)
    form(torch.randn(2, 24))
    x = torch.randn(4, 24)
    y = form.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert relative(y, reference(layer, x)) < {torch.float64: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert relative(form.float()(x), reference(layer, x)) < 2e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_on_another_device_and_back(kind):
    layer = sparse_linear(24, 18)
    form, x = made(kind, layer), torch.randn(4, 24)
    y = form.to("cuda")(x.cuda())
    assert y.is_cuda
    assert relative(y.cpu(), reference(layer, x)) < 1e-3  # TF32 may be on
    assert relative(form.cpu()(x), reference(layer, x)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_from_the_start(kind):
    layer = sparse_linear(24, 18).double()
    if kind in ("groups", "bitmap"):
        assert CANDIDATES[kind](layer, CPU, torch.float64) is None
        return
    x = torch.randn(4, 24, dtype=torch.float64)
    assert relative(made(kind, layer)(x), reference(layer, x)) < 1e-14


@pytest.mark.parametrize("kind", KINDS)
def test_inference_alone(kind):
    form = made(kind, sparse_linear(24, 18))
    x = torch.randn(2, 24, requires_grad=True)
    with pytest.raises(ModelError, match="must be used for inference alone"):
        form(x)
    with torch.no_grad():
        form(x)
    with pytest.raises(ModelError, match="and call feta"):
        form.train()
    assert not form.eval().training


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_at_once(kind):
    layer = sparse_linear(64, 48)
    form, wrong = made(kind, layer), []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for batch in (1, 3, 16, 40) * 25:
            x = torch.randn(batch, 64, generator=generator)
            if relative(form(x), reference(layer, x)) > 1e-5:
                wrong.append((seed, batch))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3])
def test_with_more_threads_than_one(kind, count, monkeypatch):
    layer = sparse_linear(300, 700, share=0.5)
    form, before = made(kind, layer), torch.get_num_threads()
    monkeypatch.setattr(calls, "_waking", lambda count: 0)  # so that threads are used for all of it
    try:
        torch.set_num_threads(count)
        for batch in (1, 2, 16, 17, 50, 100):
            x = torch.randn(batch, 300)
            assert relative(form(x), reference(layer, x)) < 1e-5
    finally:
        torch.set_num_threads(before)


@OWN
@pytest.mark.parametrize("limit", ["OMP_THREAD_LIMIT", "OMP_NUM_THREADS"])
def test_with_fewer_threads_than_asked_for(limit):
    """OpenMP may give fewer: the work must be shared by those that came."""
    script = """
import torch
from sparse_layers import reference, relative, sparse_linear
from feta.inference import calls
from feta.inference.chain import Chain
from feta.inference.grouped import Grouped
calls._waking = lambda count: 0
torch.set_num_threads(2)
layer = sparse_linear(300, 200)
form = Chain([Grouped(layer.weight, layer.bias)])
for batch in (1, 5, 40):
    x = torch.randn(batch, 300)
    print(relative(form(x), reference(layer, x)) < 1e-5)
"""
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, limit: "1"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert answer.stdout.split() == ["True"] * 3, answer.stderr


@OWN
@pytest.mark.parametrize("kind", ["groups", "bitmap", "csr"])
def test_more_columns_than_16_bits_can_count(kind):
    layer = zeroed(nn.Linear(70_001, 6), 0.85)
    form = made(kind, layer)
    for batch in (1, 3, 16):
        x = torch.randn(batch, 70_001)
        assert relative(form(x), reference(layer, x)) < 1e-5
    assert torch.equal(form.weight, layer.weight)


@OWN
@pytest.mark.parametrize(("name", "value"), [("columns", 999), ("rows", 50), ("rows", -1), ("starts", 3)])
def test_a_state_that_would_read_elsewhere_is_refused(name, value):
    form = made("groups", sparse_linear(24, 18))
    state = {key: tensor.clone() for key, tensor in form.state_dict().items()}
    (key,) = (key for key in state if key.endswith(name))
    state[key].view(-1)[-1] = value
    form.load_state_dict(state)
    with pytest.raises(ModelError, match="indices outside of it"):
        form(torch.randn(1, 24))


@OWN
def test_a_bitmap_that_does_not_fit_is_refused():
    form = made("bitmap", sparse_linear(24, 18, share=0.5))
    state = {key: tensor.clone() for key, tensor in form.state_dict().items()}
    state["masks"].fill_(-1)
    form.load_state_dict(state)
    with pytest.raises(ModelError, match="bitmap that does not fit"):
        form(torch.randn(1, 24))


@OWN
def test_infinite_inputs_reach_the_outputs_that_read_them():
    layer = sparse_linear(30, 20)
    x = torch.randn(2, 30)
    x[:, 4] = float("inf")
    found = made("groups", layer)(x)
    reads = layer.weight[:, 4] != 0
    assert not found[:, reads].isfinite().any()


@OWN
def test_bytes_at_rest():
    layer = sparse_linear(1000, 500, share=0.9)
    form = made("groups", layer)
    assert sum(b.numel() * b.element_size() for b in form.buffers()) <= 0.17 * 4 * layer.weight.numel()


def test_a_layer_with_few_zeros_has_no_sparse_form():
    layer = nn.Linear(30, 20).requires_grad_(False)
    assert [kind for kind, build in CANDIDATES.items() if build(layer, CPU, torch.float32) is not None] == []
