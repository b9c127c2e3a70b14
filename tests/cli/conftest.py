"""Commands run in this process, in an empty folder, and a network to run them on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from feta.cli import main
from feta_lab import data as datasets


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """Check for exit code 1, nothing on stdout, and one line on stderr that holds the words."""
        assert (self.code, self.out) == (1, "")
        assert self.err.startswith("feta: ")
        assert self.err.count("\n") == 1
        for word in words:
            assert word in self.err


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    """No settings but those a test makes, and the quick method whose counts are known beforehand."""
    for name in [name for name in os.environ if name.startswith("FETA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FETA_PRUNE_METHOD", "threshold")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FETA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., Answer]:
    def runner(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["feta", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Answer(int(ended.value.code or 0), *capsys.readouterr())

    return runner


@pytest.fixture(scope="session")
def mini() -> datasets.DataSet:
    return datasets.load("mnist-mini")


@pytest.fixture(scope="session")
def trained(tmp_path_factory, mini) -> Path:
    """dense-mnist after one epoch on the embedded digits."""
    from feta_lab import store
    from feta_lab.training import Training, train

    path = tmp_path_factory.mktemp("trained") / "net.safetensors"
    store.save(train("60FC-60FC-10SM", mini, Training(max_epochs=1), preset="dense-mnist"), path)
    return path
