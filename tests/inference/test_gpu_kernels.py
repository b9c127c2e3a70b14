"""The half-precision layers for GPUs: what they hold, and what their kernels give.

Without a GPU the kernels run in Triton's interpreter, which must be asked for before triton is imported.
"""

import copy
import importlib.util
import os

import pytest
import torch
from torch import Tensor, nn

from feta.errors import ModelError
from feta.inference.gpu_bitmap import BitmapLinear
from feta.inference.gpu_delta import DeltaLinear

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = "cuda" if ON_GPU else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")]
LAYERS = pytest.mark.parametrize("kind", [DeltaLinear, BitmapLinear])
KINDS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def weight(height: int, width: int, zeros: float, dtype: torch.dtype = torch.float16, device: str = "cpu") -> Tensor:
    """Random, with an empty row and a wide gap that needs bridges."""
    generator = torch.Generator().manual_seed(height * width)
    dense = torch.randn(height, width, generator=generator)
    dense *= torch.rand(height, width, generator=generator) >= zeros
    dense[height // 2] = 0
    dense[:, width // 3 : width // 3 + 40] = 0
    return dense.to(device, dtype)


def error(y: Tensor, x: Tensor, dense: Tensor, bias: Tensor | None) -> float:
    truth = x.double() @ dense.double().T + (0 if bias is None else bias.double())
    return float((y.double() - truth).norm() / truth.norm().clamp_min(1e-30))


def bound(dtype: torch.dtype) -> float:
    return 2 * torch.finfo(dtype).eps  # one rounding of each output; sums are in float32


# What they hold


@LAYERS
@KINDS
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (33, 130), (64, 512), (5, 1000)])
def test_the_weights_come_back(kind, dtype, zeros, shape):
    dense = weight(*shape, zeros, dtype)
    assert torch.equal(kind.from_dense(dense).dense(), dense)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "segments", "chunk"), [(8, 1, 8), (16, 8, 16), (32, 4, 8), (64, 2, 16)])
def test_every_layout_of_gaps_holds_the_same(bits, rows, segments, chunk):
    dense = weight(70, 900, 0.9)
    layer = DeltaLinear.from_dense(dense, rows=rows, segments=segments, chunk=chunk, bits=bits)
    assert torch.equal(layer.dense(), dense)


def test_gaps_get_the_bits_that_take_fewer_bytes():
    assert DeltaLinear.from_dense(weight(256, 512, 0.5)).bits == 4
    assert DeltaLinear.from_dense(weight(256, 4096, 0.95)).bits == 8


def test_a_sparse_layer_takes_less_room():
    dense = weight(512, 4096, 0.9)
    layer = DeltaLinear.from_dense(dense)
    held = sum(part.nbytes for part in layer.buffers())
    assert held < 0.25 * dense.nbytes


def test_a_non_contiguous_weight():
    dense = weight(90, 60, 0.7).T
    for kind in (DeltaLinear, BitmapLinear):
        assert torch.equal(kind.from_dense(dense).dense(), dense)


@LAYERS
def test_single_precision_is_refused(kind):
    with pytest.raises(ModelError, match=r"float16 or bfloat16 weights, got torch.float32; call .half\(\)"):
        kind.from_dense(torch.ones(4, 4))


# As a module


@LAYERS
@KINDS
@pytest.mark.parametrize("shape", [(40,), (1, 40), (3, 40), (2, 3, 40), (20, 40), (0, 40)])
def test_without_a_gpu_it_says_what_the_dense_layer_says(kind, dtype, shape):
    dense, bias, x = weight(50, 40, 0.6, dtype), torch.randn(50).to(dtype), torch.randn(shape).to(dtype)
    assert torch.equal(kind.from_dense(dense, bias)(x), nn.functional.linear(x, dense, bias))
    assert torch.equal(kind.from_dense(dense)(x), nn.functional.linear(x, dense))


@LAYERS
def test_another_precision_of_the_inputs_is_followed(kind):
    dense, bias, x = weight(50, 40, 0.6), torch.randn(50).half(), torch.randn(3, 40)
    layer = kind.from_dense(dense, bias)
    assert torch.equal(layer(x), nn.functional.linear(x, dense.float(), bias.float()))


@LAYERS
def test_copies_stand_alone(kind):
    dense, x = weight(50, 40, 0.6), torch.randn(2, 40).half()
    layer = kind.from_dense(dense, torch.ones(50).half())
    twin = copy.deepcopy(layer)
    before = layer(x)
    layer.values.zero_()
    assert torch.equal(twin(x), before)


@LAYERS
def test_a_state_goes_into_a_layer_of_another_weight(kind):
    source = kind.from_dense(weight(70, 300, 0.8, torch.bfloat16), torch.ones(70))
    target = nn.Sequential(kind.from_dense(torch.zeros(4, 4).half(), torch.zeros(70)))
    target.load_state_dict({"0." + name: part for name, part in source.state_dict().items()})
    assert torch.equal(target[0].dense(), source.dense())
    x = torch.randn(2, 300).bfloat16()
    assert torch.equal(target(x), source(x))


# The kernels


@needs_triton
@pytest.mark.parametrize(
    "kind", [DeltaLinear, pytest.param(BitmapLinear, marks=on_gpu)]
)  # the interpreter's dots fail
def test_the_kernel_in_bfloat16(kind):
    dense, bias = weight(33, 130, 0.6, torch.bfloat16, DEVICE), torch.randn(33, device=DEVICE).bfloat16()
    x = torch.randn(3, 130, device=DEVICE).bfloat16()
    assert error(kind.from_dense(dense, bias).launch(x), x, dense, bias) < bound(torch.bfloat16)


@needs_triton
@LAYERS
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 16])
def test_the_kernel_against_double_precision(kind, batch):
    dense, x = weight(20, 99, 0.7, device=DEVICE), torch.randn(batch, 99, device=DEVICE).half()
    assert error(kind.from_dense(dense).launch(x), x, dense, None) < bound(torch.float16)


@needs_triton
@LAYERS
@pytest.mark.parametrize("zeros", [0.0, 0.95, 1.0])
def test_the_kernel_on_few_and_many_non_zeros(kind, zeros):
    dense, bias = weight(40, 260, zeros, device=DEVICE), torch.randn(40, device=DEVICE).half()
    x = torch.randn(1, 260, device=DEVICE).half()
    assert error(kind.from_dense(dense, bias).launch(x), x, dense, bias) < bound(torch.float16)


@needs_triton
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "segments", "chunk", "prefetch"), [(16, 8, 16, True), (32, 4, 8, False)])
def test_every_layout_of_gaps_gives_the_same(bits, rows, segments, chunk, prefetch):
    dense, x = weight(20, 150, 0.8, device=DEVICE), torch.randn(1, 150, device=DEVICE).half()
    layer = DeltaLinear.from_dense(dense, rows=rows, segments=segments, chunk=chunk, bits=bits)
    assert error(layer.launch(x, prefetch=prefetch), x, dense, None) < bound(torch.float16)


@needs_triton
def test_segments_without_columns_read_nothing():
    """Five columns in four segments of two: the last segment would begin behind the end."""
    dense, x = weight(9, 5, 0.0, device=DEVICE), torch.full((1, 8), torch.nan, device=DEVICE).half()[:, :5]
    x.copy_(torch.randn(1, 5))
    assert error(DeltaLinear.from_dense(dense, segments=4).launch(x), x, dense, None) < bound(torch.float16)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@LAYERS
@KINDS
@pytest.mark.parametrize("shape", [(1024, 4096), (1000, 777)])
@pytest.mark.parametrize("leading", [(1,), (4,), (2, 8), (3, 1, 2), (40,)])
def test_on_a_gpu(kind, dtype, shape, leading):
    dense, bias = weight(*shape, 0.8, dtype, "cuda"), torch.randn(shape[0], device="cuda").to(dtype)
    x = torch.randn(*leading, shape[1], device="cuda").to(dtype)
    layer = kind.from_dense(dense.cpu(), bias.cpu()).to("cuda")
    y = layer(x)
    assert y.shape == (*leading, shape[0])
    assert y.dtype == dtype
    assert error(y.view(-1, shape[0]), x.view(-1, shape[1]), dense, bias) < 2 * bound(dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@LAYERS
def test_launches_can_be_recorded(kind):
    dense, x = weight(256, 512, 0.8, device="cuda"), torch.randn(2, 512, device="cuda").half()
    layer = kind.from_dense(dense)
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(torch.randn(2, 512))
    graph.replay()
    assert error(y, x, dense, None) < bound(torch.float16)
