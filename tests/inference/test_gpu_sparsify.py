"""sparsify on a GPU: what is chosen, by timing launches as they come and recorded, and what it gives."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import feta
from feta.inference import timing, two_four
from feta.inference.gpu_delta import DeltaLinear
from feta.inference.sparsify import sparsified
from feta.inference.two_four import TwoFourLinear
from sparse_layers import FakeTimer, relative, zeroed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]
DELTA, TWO_FOUR = {"delta": 0.1, "sparse": 0.1}, {"2:4": 0.1, "sparse": 0.1}
KINDS = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def mlp(width: int, dtype: torch.dtype, zeros: float | None, bias: bool = True) -> nn.Sequential:
    """On the GPU, with zeros anywhere, or 2:4 where no share is given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width, bias), nn.ReLU(), nn.Linear(width, width, bias))
    if zeros is not None:
        zeroed(model, zeros)
    for layer in model[::2] if zeros is None else ():
        groups = layer.weight.data.view(-1, 4)
        groups.scatter_(1, groups.abs().topk(2, largest=False).indices, 0)
    return model.requires_grad_(False).to("cuda", dtype)


def rows(count: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to("cuda", dtype)


def bound(dtype: torch.dtype) -> float:
    return 4 * torch.finfo(dtype).eps


def agrees(fast: nn.Module, model: nn.Module, x: Tensor) -> bool:
    """Near the layers' own outputs in float64, to a few roundings."""
    with torch.inference_mode():
        return relative(fast(x), copy.deepcopy(model).double()(x.double())) < bound(x.dtype)


def needs_two_four(dtype: torch.dtype) -> None:
    if not two_four.works(torch.device("cuda", torch.cuda.current_device()), dtype):
        pytest.skip("this GPU or this build of torch has no 2:4 product")


@pytest.mark.parametrize("recorded", [False, True])
def test_a_wide_mlp(recorded):
    model = mlp(4096, torch.float16, 0.9)
    timer = timing.recorded if recorded else timing.timed
    found = sparsified(model, rows(16, 4096, torch.float16), (1, 16), timer=timer)
    print(
        f"recorded={recorded}:", found.dense_ms, found.sparse_ms, [layer.kind for layer in found.layers], found.notes
    )
    assert all(layer.kind in ("dense", "delta") for layer in found.layers)
    assert all(found.sparse_ms[batch] <= 1.05 * found.dense_ms[batch] for batch in (1, 16))
    for batch in (1, 16, 40):
        assert agrees(found.model, model, rows(batch, 4096, torch.float16))


def test_recorded_launches_of_one_sample_are_faster_from_90_percent_on():
    found = sparsified(mlp(8192, torch.float16, 0.9), rows(1, 8192, torch.float16), timer=timing.recorded)
    print(found.dense_ms, found.sparse_ms, found.layers)
    assert [layer.kind for layer in found.layers] == ["delta", "delta"]
    assert found.bytes < 0.3 * found.dense_bytes
    fast = feta.sparsify(mlp(8192, torch.float16, 0.9), rows(1, 8192, torch.float16), recorded=True)
    assert [type(layer) for layer in fast] == [DeltaLinear, nn.ReLU, DeltaLinear]


@KINDS
@pytest.mark.parametrize("bias", [True, False])
def test_delta_layers_by_decree(dtype, bias):
    model = mlp(1024, dtype, 0.9, bias)
    found = sparsified(model, rows(16, 1024, dtype), (1, 16), timer=FakeTimer(**DELTA))
    assert found.notes == []  # outputs agree
    assert [type(layer) for layer in found.model] == [DeltaLinear, nn.ReLU, DeltaLinear]
    for batch in (1, 16, 17):
        assert agrees(found.model, model, rows(batch, 1024, dtype))


@KINDS
@pytest.mark.parametrize("bias", [True, False])
def test_two_four_layers(dtype, bias):
    needs_two_four(dtype)
    model = mlp(512, dtype, None, bias)
    found = sparsified(model, rows(16, 512, dtype), (1, 16), timer=FakeTimer(**TWO_FOUR))
    assert found.notes == []
    assert [type(layer) for layer in found.model] == [TwoFourLinear, nn.ReLU, TwoFourLinear]
    assert isinstance(found.model[0]._plan, torch.sparse.SparseSemiStructuredTensor)  # not a dense product
    for batch in (1, 3, 8, 16, 17, 256):
        y = found.model(rows(batch, 512, dtype))
        assert y.shape == (batch, 512)
        assert y.is_contiguous()
        assert agrees(found.model, model, rows(batch, 512, dtype))
    x = rows(6, 512, dtype)
    for strange in (x[0], x.view(2, 3, 512), x[:0], torch.cat([x, x], 1)[:, ::2]):
        assert found.model(strange).shape == (*strange.shape[:-1], 512)
        assert agrees(found.model, model, strange)


def test_two_four_layers_by_timing():
    needs_two_four(torch.float16)
    model = mlp(8192, torch.float16, None)
    found = sparsified(model, rows(256, 8192, torch.float16), timer=timing.recorded)
    print(found.dense_ms, found.sparse_ms, found.layers, found.notes)
    assert found.sparse_ms[256] <= 1.05 * found.dense_ms[256]
    assert agrees(found.model, model, rows(256, 8192, torch.float16))


@pytest.mark.parametrize("times", [DELTA, TWO_FOUR], ids=["delta", "2:4"])
def test_copies_saves_loads_and_moves(times):
    dtype, zeros = torch.float16, None if "2:4" in times else 0.9
    if zeros is None:
        needs_two_four(dtype)
    model, x = mlp(512, dtype, zeros), rows(4, 512, dtype)
    fast = sparsified(model, x, timer=FakeTimer(**times)).model
    assert type(fast[0]) in (DeltaLinear, TwoFourLinear)
    y = fast(x)
    assert torch.equal(copy.deepcopy(fast)(x), y)
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    for place in ("cuda", "cpu"):
        buffer.seek(0)
        told = torch.load(buffer, map_location=place, weights_only=False)
        assert relative(told(x.to(place)).cuda(), y.double()) < bound(dtype)
    other = sparsified(mlp(512, dtype, zeros), x, timer=FakeTimer(**times)).model
    for tensor in other.state_dict().values():
        tensor.zero_()
    other.load_state_dict(fast.state_dict())
    assert torch.equal(other(x), y)
    moved = fast.cpu()
    assert relative(moved(x.cpu()).cuda(), y.double()) < bound(dtype)
    assert relative(moved.float()(x.cpu().float()).cuda(), y.double()) < bound(dtype)
    assert torch.equal(moved.half().cuda()(x), y)


@pytest.mark.parametrize("times", [DELTA, TWO_FOUR], ids=["delta", "2:4"])
def test_the_whole_can_be_recorded(times):
    dtype, zeros = torch.float16, None if "2:4" in times else 0.9
    if zeros is None:
        needs_two_four(dtype)
    model, x = mlp(512, dtype, zeros), rows(4, 512, dtype)
    fast = sparsified(model, x, timer=FakeTimer(**times)).model
    with torch.inference_mode():
        fast(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fast(x)
        x.copy_(rows(4, 512, dtype).roll(1, 1))
        graph.replay()
        assert relative(y, copy.deepcopy(model).double()(x.double())) < bound(dtype)


def test_what_cannot_be_recorded_takes_forever():
    x = torch.ones(10, device="cuda")
    found = timing.recorded({"fine": lambda: x + 1, "asks": lambda: x.sum().item()})
    assert 0 < found["fine"] < 1
    assert found["asks"] == float("inf")
    assert timing.recorded({"fine": lambda: x + 1})["fine"] < 1  # and nothing is left broken


def test_cold_calls_are_timed_without_the_sweeps():
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
    ways = {"one": lambda: x @ x, "two": lambda: (x @ x) @ x}
    warm, cold = timing.recorded(ways), timing.recorded(ways, True)
    print(warm, cold)
    assert 0 < cold["one"] < cold["two"] < 1
