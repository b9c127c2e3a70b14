"""Rounded weights: the error stays within its bound, zeros stay zeros, dtypes come back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import feta
from feta.errors import ConfigError, FileError
from feta.files import container, lossy, sparse_file

SMALLER = ["float16", "bfloat16", "int8"]


def stored(path, tensors, dtype):
    path.write_bytes(sparse_file.encode(tensors, {}, dtype=dtype))
    return sparse_file.read(path)[0]


def bound(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The largest error that rounding to the nearest may make, entry by entry, in float64."""
    sizes = tensor.double().abs()
    if dtype == "int8":
        most = sizes.flatten(1).amax(1).reshape(-1, *[1] * (tensor.ndim - 1))
        return (most / 127 / 2 * 1.0001).expand_as(sizes)
    if dtype == "float16":
        return (sizes * 2.0**-11).clamp_min(2.0**-25)  # half of the smallest denormal
    return sizes * 2.0**-8


@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple),
    dtype=st.sampled_from(SMALLER),
    own=st.sampled_from([torch.float32, torch.float64]),
    size=st.sampled_from([1e-6, 0.05, 300.0]),
    seed=st.integers(0, 5),
)
def test_the_error_is_within_its_bound(tmp_path_factory, shape, dtype, own, size, seed):
    generator = torch.Generator().manual_seed(seed)
    tensor = size * torch.randn(shape, generator=generator, dtype=own)
    tensor[torch.rand(shape, generator=generator) < 0.6] = 0
    back = stored(tmp_path_factory.mktemp("file") / "x", {"w": tensor}, dtype)["w"]
    assert (back.dtype, back.shape) == (own, tensor.shape)
    assert bool((back[tensor == 0] == 0).all())
    assert bool(((back.double() - tensor.double()).abs() <= bound(tensor, dtype)).all())


@pytest.mark.parametrize("dtype", SMALLER)
def test_what_is_not_a_matrix_of_wide_floats_stays(tmp_path, dtype):
    tensors = {
        "bias": torch.randn(50),
        "count": torch.tensor(3),
        "ids": torch.arange(50).reshape(5, 10),
        "narrow": torch.randn(9, 9).to(torch.int8 if dtype == "int8" else torch.float16),
        "empty": torch.zeros(0, 4),
        "no columns": torch.zeros(4, 0),
        "zeros": torch.zeros(4, 40),
    }
    back = stored(tmp_path / "x", tensors, dtype)
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_a_model_and_its_size(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(360, 100))
    model[3].weight.data[torch.rand(100, 360) < 0.9] = 0
    sizes = {dtype: feta.save(model, tmp_path / str(dtype), dtype=dtype) for dtype in (None, *SMALLER)}
    assert sizes["int8"] < sizes["bfloat16"] < sizes["float16"] < 0.7 * sizes[None]
    again = feta.load_into(
        nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Flatten(), nn.Linear(360, 100)), tmp_path / "int8"
    )
    assert bool((again[3].weight[model[3].weight == 0] == 0).all())
    assert torch.equal(again[3].bias, model[3].bias)
    assert again[0].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (1e5, "float16", "save.dtype must hold all weights, got float16, too small for 'w'; bfloat16 does"),
        (float("nan"), "int8", "save.dtype must go with finite weights, got NaN or infinity in 'w'"),
        (float("inf"), "bfloat16", "got NaN or infinity in 'w'"),
    ],
)
def test_weights_that_cannot_be_rounded(value, dtype, words):
    with pytest.raises(ConfigError, match=words):
        sparse_file.encode({"w": torch.full((3, 3), value)}, {}, dtype=dtype)


@pytest.mark.parametrize(
    ("tensors", "had"),
    [
        ({"w": torch.ones(3, 3, dtype=torch.int8)}, '{"w": "float32"}'),
        ({"w": torch.ones(3, 3, dtype=torch.int8), "w.scale": torch.ones(2)}, '{"w": "float32"}'),
        ({"w": torch.ones(3, 3)}, '{"w": "nn"}'),
        ({"w": torch.ones(3, 3)}, '{"v": "float32"}'),
    ],
)
def test_files_that_say_what_cannot_be(tmp_path, tensors, had):
    (tmp_path / "x").write_bytes(container.to_bytes(tensors, {"feta.dtypes": had}))
    with pytest.raises(FileError, match=r"tensor '[wv]' must"):
        sparse_file.read(tmp_path / "x")


def test_the_error_that_is_told():
    model = nn.Linear(50, 20)
    other = lossy.with_rounded_weights(nn.Linear(50, 20), "int8")
    other.load_state_dict(model.state_dict())
    assert lossy.weight_error(model, other) == 0
    lossy.with_rounded_weights(other, "int8")
    expected = (model.weight - other.weight).detach().double().norm() / model.weight.detach().double().norm()
    assert lossy.weight_error(model, other) == pytest.approx(float(expected))
    assert 0 < float(expected) < 0.01
