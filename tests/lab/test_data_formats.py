"""The readers of IDX and CIFAR files: a good file is read exactly, and a bad one is refused with a reason."""

import gzip
import itertools
import re
import struct

import numpy as np
import pytest

from feta.errors import DataError
from feta_lab.data.catalog import CIFAR_ROW, DataFile, entry
from feta_lab.data.files import EMBEDDED, path_of, read_file, unpack

IMAGES = DataFile("train-images-idx3-ubyte", "idx", (5, 4, 3), sha256="")
LABELS = DataFile("train-labels-idx1-ubyte", "idx", (5,), sha256="")
BATCH = DataFile("test_batch.bin", "cifar", (4, CIFAR_ROW), sha256="")


def idx(values: np.ndarray) -> bytes:
    return b"\0\0\x08" + struct.pack(f">B{values.ndim}I", values.ndim, *values.shape) + values.tobytes()


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
CLASSES = np.array([3, 0, 9, 1, 1], dtype=np.uint8)
ROWS = np.random.default_rng(1).integers(0, 10, (4, CIFAR_ROW), dtype=np.uint8)
GOOD, CIFAR = idx(PIXELS), ROWS.tobytes()
PACKED = gzip.compress(GOOD)


def changed(content: bytes, offset: int, value: int) -> bytes:
    result = bytearray(content)
    result[offset] = value
    return bytes(result)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_idx_files_and_cifar_rows(tmp_path, pack):
    (tmp_path / "images").write_bytes(pack(GOOD))
    (tmp_path / "labels").write_bytes(pack(idx(CLASSES)))
    images = read_file(IMAGES, tmp_path / "images").images
    assert images.shape == (5, 1, 4, 3)
    assert np.array_equal(images[:, 0], PIXELS)
    assert np.array_equal(read_file(LABELS, tmp_path / "labels").labels, CLASSES)
    (tmp_path / "batch").write_bytes(pack(CIFAR))
    content = read_file(BATCH, tmp_path / "batch")
    assert content.images.shape == (4, 3, 32, 32)
    assert np.array_equal(content.labels, ROWS[:, 0])
    assert content.images[2, 1, 5, 7] == ROWS[2, 1 + 1024 + 5 * 32 + 7]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (IMAGES, b"", "must start with the IDX header .* got an empty file"),
        (IMAGES, GOOD[:15], "must start with the IDX header"),
        (IMAGES, changed(GOOD, 0, 0x89), "got 89 00 08 03"),
        (IMAGES, changed(GOOD, 2, 0x0D), "got 00 00 0d 03"),
        (IMAGES, changed(GOOD, 7, 6), r"shape \(5, 4, 3\), 00 .* got 00 00 08 03 00 00 00 06 "),
        (IMAGES, idx(CLASSES), "got 00 00 08 01"),
        (LABELS, idx(CLASSES[:4]), r"shape \(5,\)"),
        (IMAGES, GOOD[:16], "must have 76 unpacked bytes, got 16"),
        (IMAGES, gzip.compress(GOOD[:75]), "must have 76 unpacked bytes, got 75"),
        (IMAGES, GOOD + b"!", "must have 76 unpacked bytes, got more"),
        (BATCH, CIFAR[:CIFAR_ROW], f"must have {4 * CIFAR_ROW} unpacked bytes, got {CIFAR_ROW}"),
        (BATCH, CIFAR + b"!", f"must have {4 * CIFAR_ROW} unpacked bytes, got more"),
        (LABELS, changed(idx(CLASSES), 10, 255), r"labels must be 0\.\.9, got 255"),
        (BATCH, changed(CIFAR, 3 * CIFAR_ROW, 10), r"labels must be 0\.\.9, got 10"),
        *[(IMAGES, PACKED[:end], "the gzip data is cut or corrupt") for end in (2, 9, 12, -9, -8, -1)],
        (IMAGES, changed(PACKED, 20, PACKED[20] ^ 0xFF), "the gzip data is cut or corrupt"),
        (IMAGES, changed(PACKED, -6, PACKED[-6] ^ 0xFF), "the gzip data is cut or corrupt"),
    ],
    ids=itertools.count(),  # the bytes have the time in them
)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path, file, content, message):
    path = tmp_path / "some-file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: .*{message}"):
        read_file(file, path)


def test_a_gzip_bomb_and_a_folder_do_no_harm(tmp_path):
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(20_000_000)))
    assert len(unpack(tmp_path / "bomb", size=100)) == 101
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        unpack(tmp_path, size=1)


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_spellings(tmp_path, dot, ending):
    assert path_of(IMAGES, tmp_path) == tmp_path / IMAGES.name
    path = tmp_path / f"train-images{dot}idx3-ubyte{ending}"
    path.touch()
    assert path_of(IMAGES, tmp_path) == path


def test_bytes_of_another_set_are_refused():
    mini_labels = EMBEDDED / "train-labels-idx1-ubyte.gz"
    test_labels = entry("mnist").test[1]  # the same count, the same shape
    with pytest.raises(DataError, match="its bytes are those of mnist-mini's train-labels-idx1-ubyte"):
        read_file(test_labels, mini_labels)
