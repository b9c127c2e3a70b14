"""Commands run in this process, in an empty folder, and networks to run them on."""

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from feta.cli import main
from feta_lab import data as datasets


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """What is on stderr besides notes, such as the one on weights that a model's own code gives."""
        return "".join(line for line in self.err.splitlines(keepends=True) if not line.startswith("feta: note: "))

    def says(self, *words: str) -> None:
        """Check for success with nothing but notes on stderr, and that stdout holds the words."""
        assert (self.code, self.told) == (0, "")
        for word in words:
            assert word in self.out

    def json(self) -> Any:
        """The one JSON object on stdout, with nothing beside it."""
        assert (self.code, self.err, self.out.count("\n")) == (0, "", 1)
        return json.loads(self.out)

    def refused(self, *words: str) -> None:
        """Check for exit code 1, nothing on stdout, and one line on stderr that holds the words."""
        assert (self.code, self.out) == (1, "")
        assert self.told.startswith("feta: ")
        assert self.told.count("\n") == 1
        for word in words:
            assert word in self.told


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    """No settings but those a test makes, the quick method with known counts, no lines of progress."""
    monkeypatch.setattr("feta.progress.SELDOM", math.inf)
    for name in [name for name in os.environ if name.startswith("FETA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FETA_PRUNE_METHOD", "threshold")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FETA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., Answer]:
    """Runs a command line, given without the `feta` in front, as one text or in parts."""

    def runner(*parts: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["feta", *" ".join(parts).split()])
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


@pytest.fixture(scope="session")
def pruned(trained) -> Path:
    """What `feta prune` makes of it by threshold, with 90 % zeros."""
    from feta.cli.subject import open_subject, prune_subject

    subject, path = open_subject(trained), trained.with_name("pruned.safetensors")
    model, summary, kept = prune_subject(subject, 0.9, "threshold")
    path.write_bytes(subject.encode(model, kept, summary["accuracy"]["pruned"]))
    return path
