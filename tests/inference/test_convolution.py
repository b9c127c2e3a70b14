"""Convolutions by the kernel, against torch's in float64."""

import copy

import pytest
import torch
from torch import nn

from feta.errors import ModelError
from feta.inference import calls
from feta.inference.candidates import CANDIDATES
from feta.inference.convolution import SparseConv2d
from sparse_layers import relative, zeroed

pytestmark = pytest.mark.skipif(calls.kernels() is None, reason="numba is not installed")
LAYERS = [
    (3, 8, 3, {"padding": 1}),
    (8, 5, 1, {}),
    (8, 6, 1, {"stride": 2}),
    (4, 9, (3, 5), {"padding": "same", "dilation": 2}),
    (4, 7, 3, {"padding": "valid", "bias": False}),
    (5, 6, 3, {"stride": 2, "padding": 1}),
    (5, 6, (2, 3), {"stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)}),
]


@pytest.mark.parametrize(("c_in", "c_out", "kernel", "options"), LAYERS)
@pytest.mark.parametrize("size", [(9, 12), (16, 16), (6, 7)])
def test_outputs(c_in, c_out, kernel, options, size):
    layer = zeroed(nn.Conv2d(c_in, c_out, kernel, **options), 0.7)
    form, exact = SparseConv2d(layer), copy.deepcopy(layer).double()
    for samples in (1, 2, 5):
        x = torch.randn(samples, c_in, *size)
        wanted = exact(x.double())
        assert form(x).shape == wanted.shape
        assert relative(form(x), wanted) < 1e-5
    one = torch.randn(c_in, *size)
    assert relative(form(one), exact(one.double())) < 1e-5
    last = torch.randn(2, *size, c_in).permute(0, 3, 1, 2)
    assert relative(form(last), exact(last.double())) < 1e-5
    assert torch.equal(form.weight, layer.weight)


def test_few_positions_threads_dtypes_and_copies(monkeypatch):
    layer = zeroed(nn.Conv2d(6, 9, 3), 0.6)
    form, exact = SparseConv2d(layer), copy.deepcopy(layer).double()
    for size in ((3, 3), (3, 4), (4, 4), (3, 8), (40, 50)):  # 1, 2, 4, 6 positions, and enough for threads
        x = torch.randn(2, 6, *size)
        assert relative(form(x), exact(x.double())) < 1e-5
    monkeypatch.setattr(calls, "_waking", lambda count: 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert relative(form(x), exact(x.double())) < 1e-5
    finally:
        torch.set_num_threads(before)
    assert torch.equal(copy.deepcopy(form)(x), form(x))
    assert relative(form.double()(x.double()), exact(x.double())) < 1e-6


def test_refusals():
    form = SparseConv2d(zeroed(nn.Conv2d(3, 4, 3), 0.5))
    with pytest.raises(ModelError, match="inference alone"):
        form(torch.randn(1, 3, 5, 5, requires_grad=True))
    wide = nn.Conv2d(7300, 2, 3, device="meta").to_empty(device="cpu")  # more columns than 16 bits can count
    for layer in (nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), wide):
        assert CANDIDATES["groups"](zeroed(layer, 0.9), torch.device("cpu"), torch.float32) is None
