"""Tensors on disk: what comes back, that it can be read again, and what a full disk says."""

import errno

import pytest
import torch

from feta.calibration.spill import Spill
from feta.errors import FileError

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (1,), (), (0, 3), (2, 0)])
def test_round_trip(dtype, shape):
    odd = torch.ones(3, dtype=torch.uint8)  # what follows it does not start at a multiple of its size
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    spill = Spill([odd, tensor])
    for _ in range(2):
        back = list(spill)[1]
        assert back.dtype == dtype
        assert torch.equal(back, tensor)


def test_structures():
    transposed = torch.arange(6.0).reshape(2, 3).t()
    item = {"x": transposed, "pair": (torch.zeros(1), [torch.ones(3)]), "flag": True, "name": "a"}
    (back,) = Spill([item])
    assert torch.equal(back["x"], item["x"])
    assert torch.equal(back["pair"][0], item["pair"][0])
    assert torch.equal(back["pair"][1][0], item["pair"][1][0])
    assert (back["flag"], back["name"]) == (True, "a")


def test_changing_what_was_read_changes_no_later_pass():
    spill = Spill([torch.ones(4)])
    next(iter(spill)).zero_()
    assert next(iter(spill)).tolist() == [1.0] * 4


@pytest.mark.parametrize("size", [100_000, 300], ids=["in a write", "when the buffer is flushed"])
def test_no_room_is_an_error_with_its_cures(size, files_limited_to):
    with files_limited_to(1000), pytest.raises(FileError) as caught:
        Spill([torch.ones(size)])
    for words in ("cannot keep calibration data in", "TMPDIR", "n_samples="):
        assert words in str(caught.value)
    assert caught.value.__cause__.errno == errno.EFBIG
