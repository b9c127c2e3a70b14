"""The sets in memory: the embedded one in full, the others where they are found."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch

from feta.errors import DataError
from feta_lab import data
from feta_lab.data.catalog import CATALOG, CIFAR_ROW, entry
from feta_lab.data.checking import DIFFERS, OFFICIAL
from feta_lab.data.dataset import Normalisation, halves
from feta_lab.data.loading import read_set
from feta_lab.data.locate import EMBEDDED


@pytest.fixture(scope="module")
def mini() -> data.DataSet:
    return data.load("mnist-mini")


@pytest.fixture
def copy(tmp_path):
    """The embedded set where a test may spoil it."""
    return shutil.copytree(EMBEDDED, tmp_path / "mini")


def full(name: str) -> data.Location:
    place = data.find(name)
    if place is None:
        pytest.skip(f"{name} is in none of: {'; '.join(map(str, data.looked_in(name)))}")
    return place


def test_embedded_content(mini):
    assert (len(mini.train), len(mini.validation), len(mini.test)) == (10_000, 5_000, 5_000)
    assert mini.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mini.shape == (1, 28, 28)
    assert mini.classes == 10
    for split in (mini.train, mini.validation, mini.test):
        assert split.images.dtype == torch.uint8
        assert split.labels.dtype == torch.int64
        assert split.images.shape == (len(split), 1, 28, 28)


def test_embedded_files_are_official_and_small():
    report = data.check("mnist-mini")
    assert report.ok
    assert report.official
    assert report.label == "MNIST (10,000 training digits)"
    assert sum(path.stat().st_size for path in EMBEDDED.glob("*.gz")) < 3_300_000
    notice = (EMBEDDED / "NOTICE").read_text(encoding="utf-8")
    for words in ("LeCun", "Cortes", "Burges", "CC BY-SA 3.0", "first 10,000"):
        assert words in notice


def test_only_mnist_is_embedded():
    names = {path.name for path in EMBEDDED.iterdir() if not path.name.startswith("__")}
    assert names == {"NOTICE", *(f"{file.name}.gz" for file in entry("mnist-mini").files)}


def test_halves_are_disjoint_complete_and_fixed():
    validation, test = halves(10_000)
    assert len(validation) == len(test) == 5_000
    assert torch.equal(torch.cat([validation, test]).sort().values, torch.arange(10_000))
    # Pinned: published accuracies depend on it.
    assert validation[:6].tolist() == [6037, 855, 921, 3697, 269, 2693]
    assert test[-3:].tolist() == [9960, 5448, 6138]


def test_splits_are_the_halves_of_the_test_file(mini):
    raw = gzip.decompress((EMBEDDED / "t10k-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(raw, dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28)
    for split, rows in zip((mini.validation, mini.test), halves(10_000), strict=True):
        assert np.array_equal(split.images.numpy(), images[rows.numpy()])


def test_normalisation_equals_numpy(mini):
    scaled = mini.train.images.numpy() / 255.0
    assert mini.normalisation.mean == pytest.approx([scaled.mean()], rel=1e-12)
    assert mini.normalisation.std == pytest.approx([scaled.std()], rel=1e-12)


def test_normalisation_is_per_channel_and_leaves_its_input_alone():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), dtype=np.uint8))
    images[:, 1] //= 2
    before, norm = images.clone(), Normalisation.of(images)
    scaled = images.numpy() / 255.0
    assert norm.mean == pytest.approx(scaled.mean(axis=(0, 2, 3)))
    assert norm.std == pytest.approx(scaled.std(axis=(0, 2, 3)))
    result = norm.apply(images, "cpu")
    assert result.dtype == torch.float32
    assert result.shape == images.shape
    assert torch.equal(images, before)
    assert result.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (result.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_normalisation_of_a_constant_channel():
    with pytest.raises(DataError, match="constant channel"):
        Normalisation.of(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))


def test_altered_bytes_are_said_in_the_label(copy):
    path = copy / "train-images-idx3-ubyte.gz"
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[-1] ^= 1
    path.write_bytes(gzip.compress(bytes(raw), compresslevel=1))
    assert read_set(entry("mnist-mini"), copy).label == "MNIST (10,000 training digits) (altered)"


def test_check_reports_every_fault(copy, monkeypatch):
    monkeypatch.setattr("feta_lab.data.locate.EMBEDDED", copy)
    (copy / "train-labels-idx1-ubyte.gz").write_bytes(b"\0\0\x08\x01")
    images = copy / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:1000])
    report = data.check("mnist-mini")
    assert not report.ok
    assert not report.official
    problems = [file.problem for file in report.files]
    assert problems[0] is None
    assert problems[3] is None
    assert "train-labels-idx1-ubyte.gz: ends at byte 4" in problems[1]
    assert "t10k-images-idx3-ubyte.gz: the gzip data is cut" in problems[2]
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["ok"] is False
    assert plain["files"][0]["images"] == [10_000, 1, 28, 28]
    assert sum(plain["files"][3]["labels"]) == 10_000
    assert plain["files"][3]["checksum"] == OFFICIAL


def test_swapped_files_are_refused(copy):
    shutil.copy(copy / "train-labels-idx1-ubyte.gz", copy / "t10k-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match="its bytes are those of mnist-mini's train-labels-idx1-ubyte"):
        read_set(entry("mnist-mini"), copy)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_full_idx_sets(name):
    full(name)
    start = time.perf_counter()
    loaded = data.load(name)
    assert time.perf_counter() - start < 10  # about 0.35 s on two idle cores
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (60_000, 5_000, 5_000)
    assert loaded.label == entry(name).label
    assert data.check(name).official


@pytest.mark.data
def test_mnist_mini_is_the_front_of_mnist(mini):
    full("mnist")
    mnist = data.load("mnist")
    assert torch.equal(mini.train.images, mnist.train.images[:10_000])
    assert torch.equal(mini.train.labels, mnist.train.labels[:10_000])
    assert torch.equal(mini.validation.images, mnist.validation.images)
    assert torch.equal(mini.test.labels, mnist.test.labels)
    assert mnist.normalisation.mean[0] == pytest.approx(0.1307, abs=5e-5)
    assert mnist.normalisation.std[0] == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.data
def test_fashion_in_the_folder_of_mnist_is_refused(tmp_path):
    (tmp_path / "mnist").symlink_to(full("fashion-mnist").folder)
    with pytest.raises(DataError, match="its bytes are those of fashion-mnist's train-images-idx3-ubyte"):
        data.load("mnist", tmp_path)


@pytest.mark.data
def test_full_cifar():
    place = full("cifar-10")
    loaded = data.load("cifar-10")
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (50_000, 5_000, 5_000)
    assert loaded.shape == (3, 32, 32)
    assert loaded.train.images.is_contiguous()
    assert loaded.source == str(place.folder)
    row = np.fromfile(place.folder / "data_batch_2.bin", dtype=np.uint8, count=CIFAR_ROW)
    assert loaded.train.labels[10_000] == row[0]
    assert np.array_equal(loaded.train.images[10_000].numpy().reshape(-1), row[1:])


@pytest.mark.data
def test_cifar_is_called_what_it_is():
    full("cifar-10")
    report = data.check("cifar-10")
    assert report.ok
    assert report.label in {"CIFAR-10", "CIFAR-10 (JPEG)", "CIFAR-10 (altered)"}
    assert report.official == (report.label == "CIFAR-10")
    if report.label == "CIFAR-10 (JPEG)":
        assert {file.checksum for file in report.files} == {DIFFERS}


def test_a_known_variant_is_said_in_the_label(copy):
    labels = gzip.decompress((copy / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    known = replace(entry("mnist-mini"), variants={sha256(labels).hexdigest(): "MNIST (JPEG)"})
    assert read_set(known, copy).label == "MNIST (JPEG)"


def test_sizes_in_the_catalogue_are_those_of_the_files():
    assert [file.size for file in CATALOG["mnist"].files] == [47_040_016, 60_008, 7_840_016, 10_008]
    assert {file.size for file in CATALOG["cifar-10"].files} == {30_730_000}
