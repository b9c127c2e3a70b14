"""Sparse files: lossless, really smaller, and safe to open whatever they hold."""

import contextlib
import errno
import os
import pickle
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from feta.errors import FileError
from feta.files import sparse_file

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def sparse(shape: tuple[int, ...], share: float, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator)
    return (tensor * (torch.rand(shape, generator=generator) >= share)).to(dtype)


def round_trip(path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sparse_file.write(path, tensors, {})
    back, metadata = sparse_file.read(path)
    assert metadata == {}
    return back


def same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bit by bit, but for the sign of zeros."""
    return (
        tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and torch.equal(tensor.nan_to_num(123), other.nan_to_num(123))
        and torch.equal(tensor.isnan(), other.isnan())
    )


@given(
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple),
    percent=st.integers(0, 100),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 3),
)
def test_round_trip_is_lossless(tmp_path_factory, shape, percent, dtype, seed):
    tensor = sparse(shape, percent / 100, dtype, seed)
    path = tmp_path_factory.mktemp("file") / "x.safetensors"
    assert same(round_trip(path, {"w": tensor})["w"], tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.zeros(3, 0),
        torch.tensor(2.5),
        torch.tensor(7),
        torch.zeros(30, 30, dtype=torch.int64),
        torch.zeros(30, 30, dtype=torch.uint8),
        torch.zeros(30, 30, dtype=torch.bool),
        torch.zeros(30, 30),
        -torch.zeros(30, 30),
        torch.diag(torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-45] * 8)),
        torch.eye(30)[:, ::2],
        torch.eye(30).t(),
        nn.Parameter(torch.eye(30)),
    ],
    ids=lambda t: f"{tuple(t.shape)} {t.dtype}",
)
def test_special_tensors(tmp_path, tensor):
    assert same(round_trip(tmp_path / "x", {"w": tensor})["w"], tensor.detach())


def test_tensors_that_share_memory(tmp_path):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    back = round_trip(tmp_path / "x", {**model.state_dict(), "part": model[0].weight.detach()[:2]})
    assert torch.equal(back["0.weight"], model[0].weight)
    assert torch.equal(back["1.weight"], model[0].weight)
    assert torch.equal(back["part"], model[0].weight[:2])


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 7), (torch.float64, 8), (torch.float16, 4)])
def test_a_layer_at_90_percent_takes_that_many_times_fewer_bytes(tmp_path, dtype, least):
    dense = torch.randn(500, 784, generator=torch.Generator().manual_seed(0)).to(dtype)
    pruned = dense.clone().flatten()
    pruned[torch.randperm(pruned.numel(), generator=torch.Generator().manual_seed(0))[: int(0.9 * 392_000)]] = 0
    pruned = pruned.reshape(dense.shape)
    assert int((pruned == 0).sum()) == 352_800
    sizes = [sparse_file.write(tmp_path / name, {"w": w}, {}) for name, w in (("a", dense), ("b", pruned))]
    assert sizes == [(tmp_path / name).stat().st_size for name in ("a", "b")]
    assert sizes[0] / sizes[1] >= least
    stored = sparse_file.stored_bytes(tmp_path / "b")
    assert stored == {"w": 39_200 * dtype.itemsize + 49_000 + 16}


def test_a_tensor_is_compressed_only_where_that_is_smaller(tmp_path):
    tensors = {
        "dense": torch.ones(40, 40),
        "sparse": sparse((40, 40), 0.9),
        "small": torch.zeros(1, 2),
        "vector": torch.zeros(1000),
    }
    sparse_file.write(tmp_path / "x", tensors, {})
    stored = load_file(tmp_path / "x")  # any program that reads safetensors sees the parts
    assert set(stored) == {"dense", "sparse.compressed", "sparse.bitmask", "sparse.shape", "small", "vector"}
    assert (tmp_path / "x").stat().st_size > sum(sparse_file.stored_bytes(tmp_path / "x").values())


def test_the_format_is_the_one_described(tmp_path):
    tensor = torch.zeros(2, 100)
    tensor[0, 0], tensor[0, 9], tensor[1, 99] = 1.0, 2.0, 3.0
    sparse_file.write(tmp_path / "x", {"w": tensor}, {})
    stored = load_file(tmp_path / "x")
    assert stored["w.compressed"].tolist() == [1.0, 2.0, 3.0]
    assert stored["w.shape"].tolist() == [2, 100]
    assert stored["w.bitmask"].tolist() == [0b10000000, 0b01000000, *[0] * 22, 0b00000001]


def test_metadata_comes_back_and_files_of_other_programs_have_none(tmp_path):
    metadata = {"network": {"shape": [1, 28, 28], "accuracy": 98.5}, "ünïcode": None}
    sparse_file.write(tmp_path / "x", {"w": torch.ones(2)}, metadata)
    assert sparse_file.read(tmp_path / "x")[1] == metadata
    save_file({"w": torch.eye(3)}, tmp_path / "x")
    tensors, found = sparse_file.read(tmp_path / "x")
    assert torch.equal(tensors["w"], torch.eye(3))
    assert found == {}


@pytest.mark.parametrize("head", [b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"])
def test_a_whole_file_may_begin_like_a_pickle(tmp_path, head):
    """Its first bytes are the length of its header."""
    length = int.from_bytes(head, "little")
    (tmp_path / "x").write_bytes(sparse_file.encode({"w": torch.ones(2)}, {"note": "x" * (length - 120)}))
    content = (tmp_path / "x").read_bytes()
    missing = length - int.from_bytes(content[:8], "little")
    sparse_file.write(tmp_path / "x", {"w": torch.ones(2)}, {"note": "x" * (length - 120 + missing)})
    assert (tmp_path / "x").read_bytes()[:2] == head
    assert torch.equal(sparse_file.read(tmp_path / "x")[0]["w"], torch.ones(2))


def test_the_same_network_gives_the_same_bytes():
    tensors = {"b": sparse((20, 20), 0.9), "a": torch.ones(3)}
    assert sparse_file.encode(tensors, {"x": 1, "y": 2}) == sparse_file.encode(tensors, {"y": 2, "x": 1})


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": torch.eye(30), "w.shape": torch.ones(1)},
        {"w.compressed": torch.ones(1), "w": torch.eye(30)},
        {"w.bitmask": torch.ones(1)},
    ],
)
def test_names_that_would_be_taken_for_parts(tensors):
    with pytest.raises(FileError, match="tensor names must not end in"):
        sparse_file.encode(tensors, {})


def test_part_names_that_mean_nothing_are_free(tmp_path):
    tensors = {"w.shape": torch.ones(2), "w.compressed": torch.ones(1), "bitmask": torch.ones(3)}
    assert set(round_trip(tmp_path / "x", tensors)) == set(tensors)


# Files that are not what they should be


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "whole.safetensors"
    tensors = {"fc.weight": sparse((20, 30), 0.9), "fc.bias": torch.ones(20)}
    sparse_file.write(path, tensors, {"network": {"a": 1}})
    return path


def test_a_file_cut_anywhere(whole):
    content = whole.read_bytes()
    for end in [*range(0, 40), *range(40, len(content), 13), len(content) - 1]:
        whole.write_bytes(content[:end])
        with pytest.raises(FileError, match=f"{whole} must be a whole safetensors file"):
            sparse_file.read(whole)
        with pytest.raises(FileError):
            sparse_file.stored_bytes(whole)


@settings(max_examples=300)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(tmp_path_factory, position, value):
    path = tmp_path_factory.mktemp("file") / "x"
    content = bytearray(sparse_file.encode({"w": sparse((20, 30), 0.9)}, {"network": {"a": 1}}))
    content[position % len(content)] = value
    path.write_bytes(content)
    with contextlib.suppress(FileError):  # and nothing else
        sparse_file.read(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, b"\xff" * 100, b"{}" * 50])
def test_not_safetensors(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FileError, match="must be a whole safetensors file"):
        sparse_file.read(tmp_path / "x")


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(FileError, match=f"cannot read {tmp_path / 'none'}: No such file or directory"):
        sparse_file.read(tmp_path / "none")
    with pytest.raises(FileError, match="Is a directory"):
        sparse_file.read(tmp_path)


class Attack:
    """A pickle of it writes a file when it is loaded."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


def pickled(path, proof, protocol: int) -> None:
    path.write_bytes(pickle.dumps(Attack(proof), protocol))


def saved(path, proof, zipped: bool) -> None:
    torch.save({"w": torch.ones(2), "x": Attack(proof)}, path, _use_new_zipfile_serialization=zipped)


@pytest.mark.parametrize(
    ("write", "kind", "load"),
    [
        *((pickled, protocol, lambda path: pickle.loads(path.read_bytes())) for protocol in range(6)),
        *((saved, zipped, lambda path: torch.load(path, weights_only=False)) for zipped in (True, False)),
    ],
)
def test_a_pickle_is_refused_and_nothing_in_it_runs(tmp_path, write, kind, load):
    proof, path = tmp_path / "ran", tmp_path / "x"
    write(path, proof, kind)
    with pytest.raises(FileError, match="must be a") as caught:
        sparse_file.read(path)
    if write is saved:
        assert "got a pickle or a zip archive, which feta never loads" in str(caught.value)
        assert "safetensors.torch.save_file" in str(caught.value)
    assert not proof.exists()
    load(path)
    assert proof.exists()  # the attack is a real one


def tamper(path, **changes) -> None:
    tensors = {**load_file(path)}
    for part, tensor in changes.items():
        if tensor is None:
            del tensors[f"fc.weight.{part}"]
        else:
            tensors[f"fc.weight.{part}"] = tensor
    save_file(tensors, path)


SHORTER = torch.zeros(10, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bitmask": torch.full((75,), 255, dtype=torch.uint8)}, "mask and values must agree, got 600 and"),
        ({"bitmask": torch.zeros(75, dtype=torch.uint8)}, "mask and values must agree, got 0 and"),
        ({"bitmask": SHORTER}, r"a mask for shape \[20, 30\] must have 75 bytes, got 10"),
        ({"bitmask": torch.zeros(75)}, "parts must be one-dimensional"),
        ({"bitmask": torch.zeros(75, 1, dtype=torch.uint8)}, "parts must be one-dimensional"),
        ({"compressed": torch.ones(600)}, "mask and values must agree, got .* and 600"),
        ({"compressed": torch.ones(6, 10)}, "parts must be one-dimensional"),
        ({"shape": torch.tensor([20, 31])}, r"must have 78 bytes, got 75"),
        ({"shape": torch.tensor([-20, -30])}, r"shape must be of whole numbers >= 0, got \[-20, -30\]"),
        ({"shape": torch.tensor([2**33, 2**33])}, "must have .* bytes, got 75"),
        ({"shape": torch.tensor(600)}, "parts must be one-dimensional"),
        ({"shape": torch.tensor([20.0, 30.0])}, "parts must be one-dimensional"),
        ({"shape": None}, r"tensor 'fc.weight' lacks its parts \['shape'\]"),
        ({"compressed": None, "shape": None}, r"lacks its parts \['compressed', 'shape'\]"),
    ],
)
def test_parts_that_do_not_fit(whole, changes, message):
    tamper(whole, **changes)
    with pytest.raises(FileError, match=message) as caught:
        sparse_file.read(whole)
    assert str(whole) in str(caught.value)
    assert "fc.weight" in str(caught.value)


@pytest.mark.parametrize("text", ["{not json", "[]", "3", "null"])
def test_metadata_that_is_no_json_object(tmp_path, text):
    save_file({"w": torch.ones(2)}, tmp_path / "x", metadata={"feta": text})
    with pytest.raises(FileError, match="metadata must be a JSON object"):
        sparse_file.read(tmp_path / "x")


def test_a_full_disk_leaves_the_old_file(monkeypatch, whole):
    old = whole.read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(FileError, match=f"cannot write {whole}: No space left on device"):
        sparse_file.write(whole, {"w": torch.ones(3)}, {})
    assert [path.read_bytes() for path in whole.parent.iterdir()] == [old]


def test_metadata_that_cannot_be_stored(tmp_path):
    with pytest.raises(TypeError):
        sparse_file.write(tmp_path / "x", {"w": torch.ones(2)}, {"a": object()})
    assert list(tmp_path.iterdir()) == []
