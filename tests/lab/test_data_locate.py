"""Where data sets are searched, in which order, and what the error says when they are nowhere."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from feta.errors import ConfigError, DataError
from feta_lab import data
from feta_lab.data import catalog
from feta_lab.data.files import EMBEDDED, cache_dir


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Only the places that a test makes exist."""
    monkeypatch.delenv("FETA_DATA", raising=False)
    monkeypatch.setenv("FETA_CACHE", str(tmp_path / "cache"))
    fashion = replace(catalog.CATALOG["fashion-mnist"], system=str(tmp_path / "system"))
    monkeypatch.setattr(catalog, "CATALOG", {**catalog.CATALOG, "fashion-mnist": fashion})


def put(folder: Path, name: str, leave_out: int = 0) -> Path:
    """Empty files under a set's names: enough to be found."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in catalog.entry(name).files[leave_out:]:
        (folder / file.name).touch()
    return folder


@pytest.mark.parametrize("call", [data.load, data.find, data.looked_in, data.check, data.fetch])
def test_unknown_name(call):
    with pytest.raises(ConfigError, match="unknown data set 'mnits'; did you mean 'mnist'"):
        call("mnits")


def test_order(monkeypatch, tmp_path):
    assert [place.origin for place in data.looked_in("mnist")] == ["feta's cache"]
    monkeypatch.setenv("FETA_DATA", str(tmp_path / "env"))
    assert data.find("fashion-mnist") is None
    for folder in ("cache/fashion-mnist", "system", "env", "env/fashion-mnist"):  # from the last to the first
        put(tmp_path / folder, "fashion-mnist")
        assert data.find("fashion-mnist").folder == tmp_path / folder


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
@pytest.mark.parametrize("inside", [True, False])
def test_data_dir_holds_the_folder_or_is_it(tmp_path, name, inside):
    folder = put(tmp_path / catalog.entry(name).folder, name)
    assert data.find(name, tmp_path if inside else folder).folder == folder
    other = "mnist" if name == "fashion-mnist" else "fashion-mnist"
    assert data.find(other, folder) is None  # though MNIST and Fashion-MNIST use the same file names


def test_data_dir_is_the_only_place(monkeypatch, tmp_path):
    monkeypatch.setenv("FETA_DATA", str(put(tmp_path / "env", "mnist")))
    empty = tmp_path / "empty"
    assert {place.origin for place in data.looked_in("mnist", empty)} == {"--data-dir"}
    with pytest.raises(DataError, match=rf"--data-dir: {empty / 'mnist'} \(no such folder\)"):
        data.load("mnist", empty)
    # The embedded set is always there.
    assert data.find("mnist-mini", tmp_path).folder == EMBEDDED
    assert data.fetch("mnist-mini", tmp_path) == EMBEDDED


def test_an_incomplete_folder_is_passed_over_and_named(monkeypatch, tmp_path):
    put(tmp_path / "env" / "mnist", "mnist", leave_out=1)
    cached = put(tmp_path / "cache" / "mnist", "mnist")
    monkeypatch.setenv("FETA_DATA", str(tmp_path / "env"))
    assert data.find("mnist").folder == cached
    assert str(data.looked_in("mnist")[0]).endswith("(lacks train-images-idx3-ubyte)")


@pytest.mark.parametrize("call", [lambda name: data.load(name, download=False), data.check])
def test_nowhere_names_every_place_and_the_cure(monkeypatch, tmp_path, call):
    monkeypatch.setenv("FETA_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError, match="'fashion-mnist' was not found") as caught:
        call("fashion-mnist")
    for place in ("env/fashion-mnist", "system", "cache/fashion-mnist"):
        assert str(tmp_path / place) in str(caught.value)
    for cure in ("t10k-labels-idx1-ubyte", "--data-dir", "FETA_DATA", "feta data fetch fashion-mnist"):
        assert cure in str(caught.value)


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", None, "home/.cache/feta"),
        ("linux", "XDG_CACHE_HOME", "chosen/feta"),
        ("darwin", None, "home/Library/Caches/feta"),
        ("win32", None, "home/AppData/Local/feta"),
        ("win32", "LOCALAPPDATA", "chosen/feta"),
        ("linux", "FETA_CACHE", "chosen"),
    ],
)
def test_cache_dir(monkeypatch, tmp_path, platform, variable, expected):
    for name in ("FETA_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "platform", platform)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "chosen"))
    assert cache_dir() == tmp_path / expected
