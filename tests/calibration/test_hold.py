"""What waits between passes is the same on every pass, wherever it waits."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from feta.calibration.hold import Held, Room, size_in_bytes
from feta.calibration.lane import Seen

CPU = torch.device("cpu")


def items(count: int = 5) -> list[Tensor]:
    """40 bytes each."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(10, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("room", [0, 39, 40, 95, 160, 200, float("inf")])
def test_the_same_values_in_order_on_every_pass(room):
    held = Room(CPU, room).hold(iter(items()))
    for _ in range(3):
        assert all(map(torch.equal, held, items()))
    assert len(list(held)) == 5
    assert held.bytes == 200


@pytest.mark.parametrize(("room", "near"), [(0, 0), (39, 0), (40, 1), (95, 2), (200, 5)])
def test_memory_is_kept_to(room, near):
    """On the CPU the device's memory and the CPU's are one, and what goes beyond lies in a file."""
    held = Room(CPU, room).hold(items())
    assert len(held.near) == near
    assert len(held.spilled._items) == 5 - near


@pytest.mark.parametrize(("room", "near"), [(0, 0), (40, 2), (100, 4), (120, 5)])
def test_another_device_has_as_much_again_in_the_cpus_memory(room, near):
    held = Room(torch.device("meta"), room).hold(items())
    assert len(held.near) == near
    assert len(held.spilled._items) == 5 - near
    assert all(item.is_meta for item in held)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("room", [0, 40, 100, 1000])
def test_on_a_device_then_in_memory_then_in_a_file(room):
    device = torch.device("cuda")
    held = Room(device, room).hold(item.to(device) for item in items())
    assert [item.device.type for item in held.near[: room // 40]] == ["cuda"] * min(5, room // 40)
    assert sum(item.device.type == "cuda" for item in held.near) == min(5, room // 40)
    for _ in range(2):
        found = list(held)
        assert all(item.is_cuda for item in found)
        assert all(torch.equal(item.cpu(), wanted) for item, wanted in zip(found, items(), strict=True))


def test_what_comes_after_something_large_may_wait_in_the_file_too():
    """In order, whatever the sizes."""
    mixed = [torch.ones(2), torch.ones(100), torch.zeros(1), torch.full((3,), 2.0)]
    for room in (0, 8, 20, 1000):
        assert all(map(torch.equal, Room(CPU, room).hold(mixed), mixed))


class Pair(NamedTuple):
    a: Tensor
    b: Tensor | None


@pytest.mark.parametrize("room", [0, 1e9], ids=["file", "memory"])
def test_structures_come_back_as_they_were(room):
    x, whole = torch.randn(3, 2), torch.arange(4)
    item = {"pair": Pair(x, None), "list": [whole, (x.t(), "name")], "flag": True}
    (back,) = Room(CPU, room).hold([item])
    assert isinstance(back["pair"], Pair)
    assert torch.equal(back["pair"].a, x)
    assert back["pair"].b is None
    assert torch.equal(back["list"][0], whole)
    assert torch.equal(back["list"][1][0], x.t())
    assert (back["list"][1][1], back["flag"]) == ("name", True)


@pytest.mark.parametrize("room", [0, 1e9], ids=["file", "memory"])
def test_a_tensor_that_is_there_twice_is_one_again(room):
    """The layers of a group share an input; it is counted, kept and read once."""
    x, z = torch.randn(4, 3), torch.randn(4, 5)
    item = {"q": [Seen(x, z)], "k": [Seen(x, z.clone())]}
    held = Room(CPU, room).hold([item, item])
    for back in held:
        assert back["q"][0].x is back["k"][0].x
        assert torch.equal(back["q"][0].x, x)
        assert back["q"][0].z is not back["k"][0].z
    assert held.bytes == 2 * size_in_bytes(item) == 2 * 4 * (12 + 20 + 20)


@pytest.mark.parametrize("room", [0, 1e9], ids=["file", "memory"])
def test_half_precision_and_no_entries(room):
    given = [torch.randn(3).bfloat16(), torch.empty(0, 3), torch.tensor(2.5), torch.ones(2, dtype=torch.bool)]
    for back, wanted in zip(Room(CPU, room).hold(given), given, strict=True):
        assert back.dtype == wanted.dtype
        assert torch.equal(back, wanted)


def test_nothing_to_hold():
    held = Held((), Room(CPU, 10))
    assert (list(held), held.bytes) == ([], 0)
