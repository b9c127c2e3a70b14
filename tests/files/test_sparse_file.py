"""Sparse files: lossless, really smaller, and safe to open whatever they hold."""

import contextlib
import errno
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import feta
from feta.errors import ConfigError, FileError
from feta.files import archive, container, sparse_file

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*FLOATS, torch.int64, torch.int8, torch.uint8, torch.bool]
LAYOUTS = ["small", "compressed-tensors", "dense"]
OLD = Path(__file__).parent / "data" / "first_layout.safetensors"


def sparse(shape: tuple[int, ...], share: float, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator)
    return (tensor * (torch.rand(shape, generator=generator) >= share)).to(dtype)


def round_trip(path, tensors: dict[str, torch.Tensor], **how) -> dict[str, torch.Tensor]:
    path.write_bytes(sparse_file.encode(tensors, {}, **how))
    back, metadata = sparse_file.read(path)
    assert metadata == {}
    return back


def opened(path) -> tuple[dict[str, torch.Tensor], dict]:
    """What is in an archive: the tensors as they are stored, and what is said of them."""
    stored, texts = container.read(path)
    return archive.split(stored["feta.archive"], texts["feta.index"], str(path), "")


def shut(path, stored: dict[str, torch.Tensor], facts: dict) -> None:
    joined, index = archive.join(stored, facts)
    path.write_bytes(container.to_bytes({"feta.archive": joined}, {"feta.index": index}))


def same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bit by bit, what is in a NaN included, but for the sign of zeros."""
    words = (torch.where(t == 0, 0, t).contiguous().reshape(-1).view(torch.uint8) for t in (tensor, other))
    return tensor.dtype == other.dtype and tensor.shape == other.shape and torch.equal(*words)


@settings(max_examples=200)
@given(
    shape=st.lists(st.integers(0, 12), min_size=0, max_size=4).map(tuple),
    percent=st.integers(0, 100),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 3),
)
def test_round_trip_is_lossless(tmp_path_factory, shape, percent, dtype, layout, seed):
    tensor = (30 * sparse(shape, percent / 100, torch.float32, seed)).to(dtype)
    path = tmp_path_factory.mktemp("file") / "x.safetensors"
    assert same(round_trip(path, {"w.weight": tensor}, layout=layout)["w.weight"], tensor)


@settings(max_examples=100)
@given(
    st.binary(min_size=800, max_size=1600), st.sampled_from(DTYPES[:-1]), st.integers(0, 99), st.sampled_from(LAYOUTS)
)
def test_any_bits_come_back(tmp_path_factory, content, dtype, percent, layout):
    """NaN with any payload, infinities, denormals, negative zeros."""
    data = np.frombuffer(content, np.uint8).copy()[: 800 * (len(content) // 800)]
    words = torch.from_numpy(data).view(dtype).reshape(20, -1).clone()
    words[torch.rand(words.shape, generator=torch.Generator().manual_seed(percent)) < percent / 100] = 0
    path = tmp_path_factory.mktemp("file") / "x.safetensors"
    assert same(round_trip(path, {"w.weight": words}, layout=layout)["w.weight"], words)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.999])
def test_large_tensors_in_several_chunks(tmp_path, dtype, share):
    tensor = 0.02 * sparse((700, 1000), share, dtype)
    tensor[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40]).to(dtype)
    assert same(round_trip(tmp_path / "x", {"w": tensor})["w"], tensor)
    bits = 8 * sparse_file.stored_bytes(tmp_path / "x")["w"]
    p = float((tensor != 0).double().mean())
    entropy = 700_000 * (-p * np.log2(p) - (1 - p) * np.log2(1 - p) if p < 1 else 0)
    # An exponent and three or four leading bits of the mantissa have at most 6.5 bits of entropy, the rest is noise.
    noise = {torch.float16: 8, torch.bfloat16: 4, torch.float32: 20, torch.float64: 49.5}[dtype]
    assert bits <= 1.02 * entropy + 700_000 * p * (noise + 6.8) + 8 * 500


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_dtypes_that_are_stored_as_they_are(tmp_path, dtype, layout):
    tensor = torch.arange(-50, 350).reshape(20, 20).clamp(min=0).to(dtype)
    back = round_trip(tmp_path / "x", {"w.weight": tensor}, layout=layout)["w.weight"]
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert torch.equal(back.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_tensors_that_share_memory(tmp_path):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    back = round_trip(tmp_path / "x", {**model.state_dict(), "part": model[0].weight.detach()[:2]})
    assert torch.equal(back["0.weight"], model[0].weight)
    assert torch.equal(back["1.weight"], model[0].weight)
    assert torch.equal(back["part"], model[0].weight[:2])


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 10), (torch.float64, 10.5), (torch.float16, 8.5)])
def test_a_layer_at_90_percent_takes_that_many_times_fewer_bytes(tmp_path, dtype, least):
    dense = torch.randn(500, 784, generator=torch.Generator().manual_seed(0)).to(dtype)
    pruned = dense.clone().flatten()
    pruned[torch.randperm(pruned.numel(), generator=torch.Generator().manual_seed(0))[: int(0.9 * 392_000)]] = 0
    pruned = pruned.reshape(dense.shape)
    assert int((pruned == 0).sum()) == 352_800
    sizes = [sparse_file.write(tmp_path / name, {"w": w}, {}) for name, w in (("a", dense), ("b", pruned))]
    assert sizes == [(tmp_path / name).stat().st_size for name in ("a", "b")]
    assert dense.nbytes / sizes[1] >= least
    stored = sparse_file.stored_bytes(tmp_path / "b")["w"]
    assert stored < 0.83 * (39_200 * dtype.itemsize + 49_000)  # values and a bit mask


def test_a_tensor_is_compressed_only_where_that_is_smaller(tmp_path):
    tensors = {
        "dense": torch.randint(-100, 100, (40, 40), dtype=torch.int8),
        "sparse": sparse((40, 40), 0.9),
        "small": torch.zeros(1, 2),
        "vector": torch.zeros(1000),
    }
    sparse_file.write(tmp_path / "x", tensors, {})
    assert set(load_file(tmp_path / "x")) == {"feta.archive"}  # any program that reads safetensors sees this one
    assert set(opened(tmp_path / "x")[0]) == {"dense", "sparse.packed", "small", "vector.packed"}
    assert (tmp_path / "x").stat().st_size > sum(sparse_file.stored_bytes(tmp_path / "x").values())


def test_the_layout_of_compressed_tensors(tmp_path):
    tensor = torch.zeros(2, 100)
    tensor[0, 0], tensor[0, 9], tensor[1, 99] = 1.0, 2.0, 3.0
    tensors = {"fc.weight": tensor, "conv.weight": torch.zeros(4, 4, 9, 9), "fc.bias": torch.zeros(50)}
    back = round_trip(tmp_path / "x", tensors, layout="compressed-tensors")
    assert all(same(back[name], tensors[name]) for name in tensors)
    stored = load_file(tmp_path / "x")
    parts = {f"fc.{part}" for part in ("compressed", "bitmask", "shape", "row_offsets")}
    assert set(stored) == {*parts, "conv.weight", "fc.bias"}
    assert stored["fc.compressed"].tolist() == [1.0, 2.0, 3.0]
    assert stored["fc.shape"].tolist() == [2, 100]
    assert stored["fc.row_offsets"].tolist() == [0, 2]
    assert stored["fc.bitmask"].tolist() == [[1, 2, *[0] * 11], [*[0] * 12, 0b1000]]
    assert sparse_file.stored_bytes(tmp_path / "x")["fc.weight"] == 3 * 4 + 26 + 16 + 16


def test_the_packed_form_is_the_one_described(tmp_path):
    """Read back by the description in files.packed alone, bit by bit."""
    tensor = sparse((30, 40), 0.7).abs()
    tensor[:, ::2] *= -1
    tensor[tensor == 0] = 0.0
    (tmp_path / "x").write_bytes(sparse_file.encode({"w": tensor}, {}))
    content = (tmp_path / "x").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    end = int(header["__metadata__"]["feta.index"].split()[0])
    archive = load_file(tmp_path / "x")["feta.archive"].numpy().tobytes()
    index = json.loads(zlib.decompress(archive[:end]))
    assert index["tensors"] == [["w.packed", "uint8", [len(archive) - end], zlib.crc32(archive[end:])]]
    note, data, parts = index["feta.packed"]["w"], archive[end:], []
    for length in note["bytes"]:
        parts.append(data[:length])
        data = data[length:]
    count = note["nonzeros"]
    raw = [-(-1200 // 8) if note["where"] == "bits" else -1, count, count, 2 * count]
    where, first, second, noise = (
        part if len(part) == size else zlib.decompress(part, -15) for part, size in zip(parts, raw, strict=True)
    )
    places, here = [], -1
    if note["where"] == "bits":
        places = [i for i in range(1200) if where[i // 8] >> (7 - i % 8) & 1]
    for gap in where if note["where"] == "gaps" else b"":
        here += gap + (gap != 255)
        places += [here] * (gap != 255)
    words = [0] * 1200
    for i, place in enumerate(places):
        top = (second[i] >> 4) << 12 | first[i] << 4 | second[i] & 15
        top = (top + (note["base"] << 8)) % 2**16
        turned = top << 16 | int.from_bytes(noise[2 * i : 2 * i + 2], "little")
        words[place] = turned >> 1 | (turned & 1) << 31
    assert words == tensor.reshape(-1).view(torch.int32).to(torch.int64).remainder(2**32).tolist()


@pytest.mark.parametrize("choice", [{"layout": "tiny"}, {"dtype": "int4"}, {"dtype": torch.int8}])
def test_layouts_and_dtypes_that_do_not_exist(choice):
    with pytest.raises(ConfigError, match=f"save.{next(iter(choice))} must be one of .*, got"):
        sparse_file.encode({"w": torch.ones(3)}, {}, **choice)


def test_files_of_the_first_layout_are_read():
    model = feta.load_into(nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 3)), OLD)
    expected = torch.arange(960.0).reshape(24, 40) / 64 - 7
    expected[torch.arange(960).reshape(24, 40) % 7 > 0] = 0
    assert torch.equal(model[0].weight, expected)
    assert torch.equal(model[2].weight, torch.arange(72.0).reshape(3, 24) - 30.5)
    assert {name for name in load_file(OLD) if name.startswith("0.weight")} == {
        "0.weight.compressed",
        "0.weight.bitmask",
        "0.weight.shape",
    }


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
    (tmp_path / "x").write_bytes(sparse_file.encode({"w": torch.ones(2)}, {"note": "x" * (length - 320)}))
    content = (tmp_path / "x").read_bytes()
    missing = length - int.from_bytes(content[:8], "little")
    sparse_file.write(tmp_path / "x", {"w": torch.ones(2)}, {"note": "x" * (length - 320 + missing)})
    assert (tmp_path / "x").read_bytes()[:2] == head
    assert torch.equal(sparse_file.read(tmp_path / "x")[0]["w"], torch.ones(2))


def test_the_same_network_gives_the_same_bytes():
    tensors = {"b": sparse((20, 20), 0.9), "a": torch.ones(3)}
    assert sparse_file.encode(tensors, {"x": 1, "y": 2}) == sparse_file.encode(tensors, {"y": 2, "x": 1})


@pytest.mark.parametrize(
    ("tensors", "how"),
    [
        ({"w": torch.eye(30), "w.packed": torch.ones(1)}, {}),
        ({"w.packed": torch.ones(1)}, {}),
        ({"w.bitmask": torch.ones(1)}, {}),
        ({"w.weight": torch.eye(30), "w.shape": torch.ones(1)}, {"layout": "compressed-tensors"}),
        ({"w.compressed": torch.ones(1), "w.weight": torch.eye(30)}, {"layout": "compressed-tensors"}),
        ({"w": torch.eye(30), "w.scale": torch.ones(1)}, {"dtype": "int8"}),
    ],
)
def test_names_that_would_be_taken_for_parts(tensors, how):
    with pytest.raises(FileError, match="tensor names must not end in"):
        sparse_file.encode(tensors, {}, **how)


def test_part_names_that_mean_nothing_are_free(tmp_path):
    tensors = {"w.shape": torch.ones(2), "w.compressed": torch.ones(1), "bitmask": torch.ones(3)}
    assert set(round_trip(tmp_path / "x", tensors)) == set(tensors)
    assert set(round_trip(tmp_path / "x", tensors, layout="dense")) == set(tensors)


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flipped_bit_anywhere_is_an_error(tmp_path, layout):
    tensors = {"w.weight": sparse((12, 20), 0.9), "b": torch.ones(20)}
    whole = sparse_file.encode({**tensors, "tied": tensors["b"]}, {"network": {"a": 1}}, layout=layout)
    start = 8 + int.from_bytes(whole[:8], "little")
    path, generator = tmp_path / "x", torch.Generator().manual_seed(0)
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << int(torch.randint(8, (), generator=generator))
        path.write_bytes(content)
        with pytest.raises(FileError) as caught:  # and nothing else
            sparse_file.read(path)
        if place >= start:
            assert re.search(r"(tensor '(w\.|b).*'|the index) must have the checksum", str(caught.value))


@settings(max_examples=300)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_of_an_old_file_is_read_or_refused(tmp_path_factory, position, value):
    path, content = tmp_path_factory.mktemp("file") / "x", bytearray(OLD.read_bytes())
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
        assert "from safetensors.torch import save_file" in str(caught.value)
    assert not proof.exists()
    load(path)
    assert proof.exists()  # the attack is a real one


def test_the_conversion_of_a_pickle_works_wherever_it_is_offered(tmp_path):
    model, path = nn.Linear(3, 2), tmp_path / "net.pt"
    torch.save(model.state_dict(), path)
    with pytest.raises(FileError, match=r"net\.pt must be a safetensors file, got a pickle") as caught:
        feta.load_into(nn.Linear(3, 2), path)
    command, _, new = str(caught.value).partition("convert it: ")[2].partition(" and then give ")
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert torch.equal(feta.load_into(nn.Linear(3, 2), new).weight, model.weight)
    torch.save(model.state_dict(), tmp_path / "odd.safetensors")
    with pytest.raises(FileError, match=r"and then give .*odd\.new\.safetensors"):
        feta.load_into(nn.Linear(3, 2), tmp_path / "odd.safetensors")


@pytest.mark.parametrize("name", ["x.pt", "x.PTH", "x.bin"])
def test_the_ending_of_a_pickle_is_refused(tmp_path, name):
    with pytest.raises(FileError, match=f"path must end in .safetensors, got .*{name}, whose ending stands for a"):
        feta.save(nn.Linear(3, 2), tmp_path / name)
    assert not list(tmp_path.iterdir())


def tamper(path, **changes) -> None:
    tensors = {"fc.weight." + part: torch.zeros(75, dtype=torch.uint8) for part in ("compressed", "bitmask", "shape")}
    values = sparse((20, 30), 0.9)
    tensors["fc.weight.compressed"], tensors["fc.weight.shape"] = values[values != 0], torch.tensor([20, 30])
    tensors["fc.weight.bitmask"] = torch.from_numpy(np.packbits((values != 0).numpy()))
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


NOTE = {"dtype": "float32", "shape": [40, 40], "nonzeros": 40, "where": "gaps", "base": 100, "bytes": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    "facts",
    [
        {"feta.packed": []},
        {"feta.packed": {"w": 3}},
        {"feta.packed": {"v": {}}},
        {"feta.same": {"v": "u"}},
        {"feta.same": {"v": []}},
        *({"feta.packed": {"w": {key: value for key, value in NOTE.items() if key != left}}} for left in NOTE),
        *(
            {"feta.packed": {"w": NOTE | change}}
            for change in (
                {},
                {"dtype": "complex64"},
                {"dtype": []},
                {"shape": [-40, -40]},
                {"shape": [2**40, 2**40]},
                {"shape": 1600},
                {"nonzeros": 1601},
                {"nonzeros": -1},
                {"nonzeros": 1600, "where": "all"},
                {"where": "elsewhere"},
                {"where": "bits"},
                {"base": 256},
                {"bytes": []},
                {"bytes": [-1, 1, 1, 1]},
                {"bytes": [10**30, 1]},
            )
        ),
    ],
)
def test_notes_that_cannot_be(tmp_path, facts):
    """Whoever can write a note can write its checksum too."""
    (tmp_path / "x").write_bytes(sparse_file.encode({"w": sparse((40, 40), 0.9)}, {}))
    stored, found = opened(tmp_path / "x")
    shut(tmp_path / "x", stored, found | facts)
    with pytest.raises(FileError, match=str(tmp_path / "x")):
        sparse_file.read(tmp_path / "x")


@pytest.mark.parametrize(
    "listed",
    [
        3,
        [3],
        [["w"]],
        [["w", "float33", [2], 0]],
        [["w", "nn", [2], 0]],
        [["w", "uint8", [9], 0]],
        [["w", "uint8", -1, 0]],
    ],
)
def test_an_index_that_cannot_be(tmp_path, listed):
    index = zlib.compress(json.dumps({"tensors": listed}).encode())
    joined = torch.frombuffer(bytearray(index + b"12345678"), dtype=torch.uint8)
    for text in (f"{len(index)} {zlib.crc32(index)}", f"{len(index)}", "", "-1 0", f"{10**9} 5"):
        (tmp_path / "x").write_bytes(container.to_bytes({"feta.archive": joined}, {"feta.index": text}))
        with pytest.raises(FileError, match=str(tmp_path / "x")):
            sparse_file.read(tmp_path / "x")
    (tmp_path / "x").write_bytes(container.to_bytes({"w": joined}, {"feta.index": "1 1"}))
    with pytest.raises(FileError, match=r"must hold its tensors in feta.archive, got none"):
        sparse_file.read(tmp_path / "x")


def test_a_short_code_for_very_many_bytes_is_not_read_on(tmp_path):
    (tmp_path / "x").write_bytes(sparse_file.encode({"w": torch.eye(40)}, {}))
    stored, facts = opened(tmp_path / "x")
    note, bomb = facts["feta.packed"]["w"], zlib.compressobj(9, zlib.DEFLATED, -15)
    code = bomb.compress(bytes(10**6)) + bomb.flush()
    rest = stored["w.packed"][note["bytes"][0] :]
    stored["w.packed"] = torch.cat((torch.frombuffer(bytearray(code), dtype=torch.uint8), rest))
    note["bytes"][0] = len(code)
    shut(tmp_path / "x", stored, facts)
    with pytest.raises(FileError, match="coded bytes of 47 or more where 46 belong"):
        sparse_file.read(tmp_path / "x")


@pytest.mark.parametrize("sums", ["", "[]", "[1, 2]", "3", '{"w": 1}', None])
def test_checksums_that_are_not_there(tmp_path, sums):
    content = container.to_bytes({"w": torch.ones(3)}, {})
    head, data = (
        content[: 8 + int.from_bytes(content[:8], "little")],
        content[8 + int.from_bytes(content[:8], "little") :],
    )
    known = json.loads(head[8:])
    known["__metadata__"] |= {"feta.header": "0" * 8, "feta.crc32": sums}
    if sums is None:
        del known["__metadata__"]["feta.crc32"]
    text = json.dumps(known, separators=(",", ":")).encode()
    head = len(text).to_bytes(8, "little") + text
    right = f"{zlib.crc32(head):08x}".encode()
    (tmp_path / "x").write_bytes(head.replace(b'"feta.header":"00000000"', b'"feta.header":"' + right + b'"') + data)
    with pytest.raises(FileError, match=r"must have (a|the) checksum"):
        sparse_file.read(tmp_path / "x")


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
