"""The data sets in memory: the embedded one always, the others where they are found."""

import gzip
import json
import shutil
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch

from feta.errors import DataError
from feta_lab import data
from feta_lab.data.catalog import CIFAR_ROW, entry
from feta_lab.data.dataset import Normalisation, halves, read_set
from feta_lab.data.files import EMBEDDED, Location


@pytest.fixture(scope="module")
def mini() -> data.DataSet:
    return data.load("mnist-mini")


@pytest.fixture
def copy(tmp_path):
    """The embedded set where a test may spoil it."""
    return shutil.copytree(EMBEDDED, tmp_path / "mini")


def full(name: str) -> Location:
    place = data.find(name)
    if place is None:
        pytest.skip(f"{name} is in none of: {'; '.join(map(str, data.looked_in(name)))}")
    return place


def test_embedded_content(mini):
    assert (len(mini.train), len(mini.validation), len(mini.test)) == (10_000, 5_000, 5_000)
    assert mini.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert (mini.shape, mini.classes) == ((1, 28, 28), 10)
    assert mini.normalisation == Normalisation.of(mini.train.images)
    for split in (mini.train, mini.validation, mini.test):
        assert (split.images.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
        assert split.images.shape == (len(split), 1, 28, 28)


def test_embedded_files_are_official_and_name_their_licence():
    assert data.check("mnist-mini")["official"]
    names = {path.name for path in EMBEDDED.iterdir() if not path.name.startswith("__")}
    assert names == {"NOTICE", *(f"{file.name}.gz" for file in entry("mnist-mini").files)}
    assert "CC BY-SA 3.0" in (EMBEDDED / "NOTICE").read_text(encoding="utf-8")


def test_halves_are_disjoint_complete_and_fixed(mini):
    validation, test = halves(10_000)
    assert len(validation) == len(test) == 5_000
    assert torch.equal(torch.cat([validation, test]).sort().values, torch.arange(10_000))
    # Pinned, because published accuracies depend on it.
    assert validation[:6].tolist() == [6037, 855, 921, 3697, 269, 2693]
    assert test[-3:].tolist() == [9960, 5448, 6138]
    raw = gzip.decompress((EMBEDDED / "t10k-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(raw, dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28)
    for split, rows in ((mini.validation, validation), (mini.test, test)):
        assert np.array_equal(split.images.numpy(), images[rows.numpy()])


def test_normalisation_is_per_channel_and_leaves_its_input_alone():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), dtype=np.uint8))
    images[:, 1] //= 2
    before, norm = images.clone(), Normalisation.of(images)
    scaled = images.numpy() / 255.0
    assert norm.mean == pytest.approx(scaled.mean(axis=(0, 2, 3)), rel=1e-12)
    assert norm.std == pytest.approx(scaled.std(axis=(0, 2, 3)), rel=1e-12)
    result = norm.apply(images, "cpu")
    assert (result.dtype, result.shape) == (torch.float32, images.shape)
    assert torch.equal(images, before)
    assert result.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (result.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    with pytest.raises(DataError, match="constant channel"):
        Normalisation.of(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))


def test_the_label_says_which_bytes_these_are(copy):
    labels = gzip.decompress((copy / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    known = replace(entry("mnist-mini"), variants={sha256(labels).hexdigest(): "MNIST (JPEG)"})
    assert read_set(known, copy).label == "MNIST (JPEG)"
    path = copy / "train-images-idx3-ubyte.gz"
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[-1] ^= 1
    path.write_bytes(gzip.compress(bytes(raw), compresslevel=1))
    assert read_set(entry("mnist-mini"), copy).label == "MNIST (10,000 training digits) (altered)"


def test_check_reports_every_fault(copy, monkeypatch):
    monkeypatch.setattr("feta_lab.data.files.EMBEDDED", copy)
    (copy / "train-labels-idx1-ubyte.gz").write_bytes(b"\0\0\x08\x01")
    images = copy / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:1000])
    report = data.check("mnist-mini")
    assert json.loads(json.dumps(report)) == report
    assert not report["ok"]
    assert not report["official"]
    first, labels, cut, last = report["files"]
    assert first["images"] == [10_000, 1, 28, 28]
    assert sum(last["labels"]) == 10_000
    assert [file["checksum"] for file in report["files"]] == ["official", None, None, "official"]
    assert first["problem"] is last["problem"] is None
    assert "train-labels-idx1-ubyte.gz: must start with" in labels["problem"]
    assert "t10k-images-idx3-ubyte.gz: the gzip data is cut" in cut["problem"]


@pytest.mark.data
@pytest.mark.parametrize(("name", "count"), [("mnist", 60_000), ("fashion-mnist", 60_000), ("cifar-10", 50_000)])
def test_full_sets(name, count):
    place = full(name)
    loaded, report = data.load(name), data.check(name)
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (count, 5_000, 5_000)
    assert (report["ok"], report["label"], report["folder"]) == (True, loaded.label, loaded.source)
    assert report["official"] == (loaded.label == entry(name).label)
    if name == "cifar-10":
        row = np.fromfile(place.folder / "data_batch_2.bin", dtype=np.uint8, count=CIFAR_ROW)
        assert loaded.train.labels[10_000] == row[0]
        assert np.array_equal(loaded.train.images[10_000].numpy().reshape(-1), row[1:])


@pytest.mark.data
def test_mnist_mini_is_the_front_of_mnist(mini):
    full("mnist")
    mnist = data.load("mnist")
    assert torch.equal(mini.train.images, mnist.train.images[:10_000])
    assert torch.equal(mini.train.labels, mnist.train.labels[:10_000])
    assert torch.equal(mini.validation.images, mnist.validation.images)
    assert mnist.normalisation.mean[0] == pytest.approx(0.1307, abs=5e-5)
    assert mnist.normalisation.std[0] == pytest.approx(0.3081, abs=5e-5)
