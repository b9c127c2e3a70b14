"""The half-precision layers for GPUs: what they hold, and what their kernels give.

Without a GPU the kernels run in Triton's interpreter, which must be asked for before triton is imported.
"""

import copy
import importlib.util
import os
import pickle

import pytest
import torch
from torch import Tensor, nn

from feta.inference import gpu_delta
from feta.inference.gpu_delta import DeltaLinear

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = "cuda" if ON_GPU else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")]
KINDS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def weight(height: int, width: int, zeros: float, dtype: torch.dtype = torch.float16, device: str = "cpu") -> Tensor:
    """Random, with an empty row and a wide gap that needs bridges."""
    generator = torch.Generator().manual_seed(height * width)
    dense = torch.randn(height, width, generator=generator)
    dense *= torch.rand(height, width, generator=generator) >= zeros
    dense[height // 2] = 0
    dense[:, width // 3 : width // 3 + 40] = 0
    return dense.to(device, dtype)


def delta(dense: Tensor, bias: Tensor | None = None) -> DeltaLinear:
    layer = nn.Linear(1, 1, bias is not None)
    layer.out_features, layer.in_features = dense.shape
    layer.weight = nn.Parameter(dense, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return DeltaLinear(layer)


def error(y: Tensor, x: Tensor, dense: Tensor, bias: Tensor | None) -> float:
    truth = x.double() @ dense.double().T + (0 if bias is None else bias.double())
    return float((y.double() - truth).norm() / truth.norm().clamp_min(1e-30))


def bound(dtype: torch.dtype) -> float:
    return 2 * torch.finfo(dtype).eps  # one rounding of each output; sums are in float32


# What they hold


@KINDS
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (33, 130), (64, 512), (5, 1000)])
def test_the_weights_come_back(dtype, zeros, shape):
    dense = weight(*shape, zeros, dtype)
    assert torch.equal(delta(dense).weight, dense)


@pytest.mark.parametrize("bits", [4, 8])
def test_both_widths_of_gaps_hold_the_same(bits, monkeypatch):
    monkeypatch.setattr(gpu_delta, "fewer_bits", lambda *_: bits)
    dense = weight(70, 900, 0.9)
    assert torch.equal(delta(dense).weight, dense)


def test_gaps_get_the_bits_that_take_fewer_bytes():
    assert delta(weight(256, 512, 0.5)).bits == 4
    assert delta(weight(256, 4096, 0.95)).bits == 8


def test_a_sparse_layer_takes_less_room():
    dense = weight(512, 8192, 0.9)
    layer = delta(dense)
    held = sum(part.nbytes for part in layer.buffers())
    assert held < 0.3 * dense.nbytes


def test_a_non_contiguous_weight():
    dense = weight(90, 60, 0.7).T
    assert torch.equal(delta(dense).weight, dense)


# As a module


@KINDS
@pytest.mark.parametrize("shape", [(40,), (1, 40), (3, 40), (2, 3, 40), (20, 40), (0, 40)])
def test_without_a_gpu_it_says_what_the_dense_layer_says(dtype, shape):
    dense, bias, x = weight(50, 40, 0.6, dtype), torch.randn(50).to(dtype), torch.randn(shape).to(dtype)
    assert torch.equal(delta(dense, bias)(x), nn.functional.linear(x, dense, bias))
    assert torch.equal(delta(dense)(x), nn.functional.linear(x, dense))


def test_another_precision_is_followed():
    dense, bias, x = weight(50, 40, 0.6), torch.randn(50).half(), torch.randn(3, 40)
    assert torch.equal(delta(dense, bias).float()(x), nn.functional.linear(x, dense.float(), bias.float()))
    assert torch.equal(delta(dense).float()(x), nn.functional.linear(x, dense.float()))


def test_copies_stand_alone():
    dense, x = weight(50, 40, 0.6), torch.randn(2, 40).half()
    layer = delta(dense, torch.ones(50).half())
    twin = copy.deepcopy(layer)
    layer.values.zero_()
    assert torch.equal(twin(x), nn.functional.linear(x, dense, torch.ones(50).half()))


def test_a_state_comes_back():
    dense, x = weight(70, 300, 0.8, torch.bfloat16), torch.randn(2, 300).bfloat16()
    source = delta(dense, torch.ones(70).bfloat16())
    target = copy.deepcopy(source)
    target.values.zero_()
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(x), source(x))
    assert torch.equal(pickle.loads(pickle.dumps(source))(x), source(x))


# The kernels


@needs_triton
def test_the_kernel_in_bfloat16():
    dense, bias = weight(33, 130, 0.6, torch.bfloat16, DEVICE), torch.randn(33, device=DEVICE).bfloat16()
    x = torch.randn(3, 130, device=DEVICE).bfloat16()
    assert error(delta(dense, bias).launch(x), x, dense, bias) < bound(torch.bfloat16)


@needs_triton
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 16])
def test_the_kernel_against_double_precision(batch):
    dense, x = weight(20, 99, 0.7, device=DEVICE), torch.randn(batch, 99, device=DEVICE).half()
    assert error(delta(dense).launch(x), x, dense, None) < bound(torch.float16)


@needs_triton
@pytest.mark.parametrize("zeros", [0.0, 0.95, 1.0])
def test_the_kernel_on_few_and_many_non_zeros(zeros):
    dense, bias = weight(40, 260, zeros, device=DEVICE), torch.randn(40, device=DEVICE).half()
    x = torch.randn(1, 260, device=DEVICE).half()
    assert error(delta(dense, bias).launch(x), x, dense, bias) < bound(torch.float16)


@needs_triton
@pytest.mark.parametrize("bits", [4, 8])
def test_both_widths_of_gaps_give_the_same(bits, monkeypatch):
    monkeypatch.setattr(gpu_delta, "fewer_bits", lambda *_: bits)
    dense, x = weight(20, 150, 0.8, device=DEVICE), torch.randn(1, 150, device=DEVICE).half()
    assert error(delta(dense).launch(x), x, dense, None) < bound(torch.float16)


@needs_triton
def test_segments_without_columns_read_nothing():
    """Five columns in as many segments of one: the others would begin behind the end."""
    dense, x = weight(9, 5, 0.0, device=DEVICE), torch.full((1, 8), torch.nan, device=DEVICE).half()[:, :5]
    x.copy_(torch.randn(1, 5))
    assert error(delta(dense).launch(x), x, dense, None) < bound(torch.float16)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@KINDS
@pytest.mark.parametrize("shape", [(1024, 4096), (1000, 777)])
@pytest.mark.parametrize("leading", [(1,), (4,), (2, 8), (3, 1, 2), (40,)])
def test_on_a_gpu(dtype, shape, leading):
    dense, bias = weight(*shape, 0.8, dtype, "cuda"), torch.randn(shape[0], device="cuda").to(dtype)
    x = torch.randn(*leading, shape[1], device="cuda").to(dtype)
    layer = delta(dense.cpu(), bias.cpu()).to("cuda")
    y = layer(x)
    assert y.shape == (*leading, shape[0])
    assert y.dtype == dtype
    assert error(y.view(-1, shape[0]), x.view(-1, shape[1]), dense, bias) < 2 * bound(dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_launches_can_be_recorded():
    dense, x = weight(256, 512, 0.8, device="cuda"), torch.randn(2, 512, device="cuda").half()
    layer = delta(dense)
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(torch.randn(2, 512))
    graph.replay()
    assert error(y, x, dense, None) < bound(torch.float16)
