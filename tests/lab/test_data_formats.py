"""IDX and CIFAR readers: what is right is read exactly, what is wrong is named with its offset."""

from __future__ import annotations

import contextlib
import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feta.errors import DataError
from feta_lab.data.catalog import CIFAR_ROW, DataFile, entry
from feta_lab.data.files import read_file, spelled
from feta_lab.data.formats import Raw, parse_idx, read_raw
from feta_lab.data.locate import EMBEDDED

IMAGES = DataFile("train-images-idx3-ubyte", "idx", (5, 4, 3), sha256="")
LABELS = DataFile("train-labels-idx1-ubyte", "idx", (5,), sha256="")
BATCH = DataFile("test_batch.bin", "cifar", (4, CIFAR_ROW), sha256="")

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
CLASSES = np.array([3, 0, 9, 1, 1], dtype=np.uint8)
ROWS = np.random.default_rng(1).integers(0, 10, (4, CIFAR_ROW), dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    return b"\0\0\x08" + struct.pack(f">B{values.ndim}I", values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to_file(content: bytes) -> Path:
        path = tmp_path / "some-file"
        path.write_bytes(content)
        return path

    return to_file


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_idx_images_and_labels(write, pack):
    images = read_file(IMAGES, write(pack(idx(PIXELS)))).images
    assert images.shape == (5, 1, 4, 3)
    assert np.array_equal(images[:, 0], PIXELS)
    assert np.array_equal(read_file(LABELS, write(pack(idx(CLASSES)))).labels, CLASSES)


def test_reads_cifar_rows_channel_first(write):
    content = read_file(BATCH, write(ROWS.tobytes()))
    assert content.images.shape == (4, 3, 32, 32)
    assert np.array_equal(content.labels, ROWS[:, 0])
    assert content.images[2, 1, 5, 7] == ROWS[2, 1 + 1024 + 5 * 32 + 7]


@pytest.mark.parametrize("end", [0, 1, 2, 3, 4, 7, 8, 15])
def test_idx_cut_inside_its_header(write, end):
    with pytest.raises(DataError, match=rf"some-file: ends at byte {end}, (inside its header|needs 16)"):
        read_file(IMAGES, write(idx(PIXELS)[:end]))


@pytest.mark.parametrize("end", [16, 17, 75])
@pytest.mark.parametrize(("pack", "where"), [(bytes, ""), (gzip.compress, r" \(unpacked\)")])
def test_idx_cut_inside_its_values(write, end, pack, where):
    with pytest.raises(DataError, match=rf"some-file{where}: ends at byte {end}, needs 76"):
        read_file(IMAGES, write(pack(idx(PIXELS)[:end])))


@pytest.mark.parametrize("file", [IMAGES, BATCH], ids=["idx", "cifar"])
def test_trailing_bytes(write, file):
    content = idx(PIXELS) if file is IMAGES else ROWS.tobytes()
    with pytest.raises(DataError, match=f"must end at byte {file.size}, but more bytes follow"):
        read_file(file, write(content + b"!"))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 0x89, "byte 0 must be 00 00 to be an IDX file, got 89 00"),
        (1, 1, "byte 0 must be 00 00 to be an IDX file, got 00 01"),
        (2, 0x0D, "byte 2 must be 08 for unsigned bytes, got 0d"),
        (3, 1, "byte 3 must be 03 for 3 dimensions, got 01"),
        (7, 6, "dimension 0 at byte 4 must be 5, got 6"),
        (11, 28, "dimension 1 at byte 8 must be 4, got 28"),
        (12, 1, "dimension 2 at byte 12 must be 3, got 16777219"),
    ],
)
def test_wrong_header(write, offset, value, message):
    content = bytearray(idx(PIXELS))
    content[offset] = value
    with pytest.raises(DataError, match=f"some-file: {re.escape(message)}"):
        read_file(IMAGES, write(bytes(content)))


def test_labels_where_images_must_be(write):
    with pytest.raises(DataError, match="byte 3 must be 03 for 3 dimensions, got 01"):
        read_file(IMAGES, write(idx(CLASSES)))


def test_counts_of_images_and_labels_must_agree(write):
    with pytest.raises(DataError, match="dimension 0 at byte 4 must be 5, got 4"):
        read_file(LABELS, write(idx(CLASSES[:4])))


def test_idx_label_out_of_range(write):
    with pytest.raises(DataError, match=r"some-file: label at byte 10 must be 0\.\.9, got 10"):
        read_file(LABELS, write(idx(np.array([1, 2, 10, 255, 0], dtype=np.uint8))))


def test_cifar_label_out_of_range(write):
    rows = ROWS.copy()
    rows[3, 0] = 77
    with pytest.raises(DataError, match=rf"some-file: label at byte {3 * CIFAR_ROW} must be 0\.\.9, got 77"):
        read_file(BATCH, write(rows.tobytes()))


@pytest.mark.parametrize("end", [0, CIFAR_ROW - 1, 3 * CIFAR_ROW, 4 * CIFAR_ROW - 1])
def test_cifar_cut(write, end):
    with pytest.raises(DataError, match=f"ends at byte {end}, needs {4 * CIFAR_ROW}"):
        read_file(BATCH, write(ROWS.tobytes()[:end]))


@pytest.mark.parametrize("keep", [2, 9, 12, -9, -8, -1])
def test_cut_gzip(write, keep):
    with pytest.raises(
        DataError, match=r"some-file: the gzip data is cut or corrupt after unpacked byte \d+"
    ):
        read_file(IMAGES, write(gzip.compress(idx(PIXELS))[:keep]))


@pytest.mark.parametrize("offset", [20, -6], ids=["data", "crc"])
def test_corrupt_gzip(write, offset):
    packed = bytearray(gzip.compress(idx(PIXELS)))
    packed[offset] ^= 0xFF
    with pytest.raises(DataError, match="some-file: the gzip data is cut or corrupt"):
        read_file(IMAGES, write(bytes(packed)))


def test_gzip_that_swells_is_not_unpacked_to_its_end(write):
    bomb = gzip.compress(bytes(20_000_000))
    assert len(read_raw(write(bomb), size=100).values) == 101


def test_a_folder_in_the_place_of_a_file(tmp_path):
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_raw(tmp_path, size=1)


@pytest.mark.parametrize(
    "spelling",
    [
        "train-images-idx3-ubyte",
        "train-images-idx3-ubyte.gz",
        "train-images.idx3-ubyte",
        "train-images.idx3-ubyte.gz",
    ],
)
def test_spellings(tmp_path, spelling):
    assert spelled(tmp_path, IMAGES.name) is None
    (tmp_path / spelling).touch()
    assert spelled(tmp_path, IMAGES.name) == tmp_path / spelling


def test_bytes_of_another_set_are_refused():
    mini_labels = EMBEDDED / "train-labels-idx1-ubyte.gz"
    test_labels = entry("mnist").test[1]  # the same count, the same shape
    with pytest.raises(DataError, match="its bytes are those of mnist-mini's train-labels-idx1-ubyte"):
        read_file(test_labels, mini_labels)


@settings(deadline=None, derandomize=True)
@given(offset=st.integers(0, 75), value=st.integers(0, 255), end=st.integers(0, 80))
def test_a_spoilt_file_is_an_array_or_a_data_error(offset, value, end):
    content = bytearray(idx(PIXELS) + bytes(4))
    content[offset] = value
    raw = Raw(np.frombuffer(content, dtype=np.uint8)[:end], "some-file")
    intact = end == 76 and content[:16] == idx(PIXELS)[:16]
    with contextlib.nullcontext() if intact else pytest.raises(DataError, match=r"^some-file: "):
        assert parse_idx(raw, (5, 4, 3)).shape == (5, 4, 3)
