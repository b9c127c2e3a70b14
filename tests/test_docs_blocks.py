"""Every block of Python and of commands on the pages runs, in its order, or says in a comment above it why it is not.

The blocks of a page share one folder and one set of names. What they take for granted is in tests/stock.py; fits take
few steps, and training one epoch. A block of Python whose first line is `# NAME.py` is a file of that name.
"""

import itertools
import os
import re
import shutil
import sys

import pytest
import torch

import stock
from feta.cli import main
from feta.engine import recipe
from feta.inference import timing
from feta.structured import shrink
from feta.tuning import bench, refine
from feta.tuning.refinement import Refinement
from feta.tuning.retrain import Retraining
from feta_lab.training import Training
from pages import SHOWN, Block, blocks, words

SMALL = {  # what is not said on a page
    "FETA_PRUNE_SAMPLES": "200",
    "FETA_SHRINK_SAMPLES": "100",
    "FETA_TRAIN_DATA": "mnist-mini",
    "FETA_BOUNDS_STARTS": "1",
    "FETA_CERTIFY_SAMPLES": "2",
    "FETA_CERTIFY_REFINED": "0",
}
pytestmark = pytest.mark.filterwarnings("ignore:the dense layers stay:UserWarning")  # on a busy machine
WRITES = ("-o", "--output", "--onnx", "--torch-export", "--safetensors", "--report")


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Files that have been made once, for all pages."""
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("FETA_") and name != "FETA_DATA"]:
        monkeypatch.delenv(name)
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(recipe, "STEPS", 40)
    monkeypatch.setattr(shrink, "STEPS", {"fast": 0, "default": 20, "best": 40})
    monkeypatch.setattr(bench, "RATES", (1e-3,))
    monkeypatch.setattr(bench, "TRIED", (2, 4))
    monkeypatch.setattr(refine, "LEAST_STEPS", 5)
    monkeypatch.setattr(timing, "MOST_SECONDS", 0.05)
    for settings, field, most in (
        (Refinement, "steps", 20),
        (Retraining, "max_epochs", 1),
        (Training, "max_epochs", 1),
    ):
        limit(monkeypatch, settings, field, most)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    yield
    sys.modules.pop("my_model", None)


def limit(monkeypatch, settings, field, most):
    """However many are asked for."""
    check = settings.__post_init__

    def limited(self):
        check(self)
        object.__setattr__(self, field, min(getattr(self, field), most))

    monkeypatch.setattr(settings, "__post_init__", limited)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_blocks_run(path, shelf, monkeypatch, tmp_path):
    scope = stock.names() | {"__name__": "page"}
    shell = Shell(tmp_path / "here", shelf, monkeypatch)
    for block in blocks(path, "python", "console", "bash", "sh"):
        if block.why is not None:
            continue
        if block.language == "python":
            # In the reference each block is one docstring's.
            python(block, stock.names() if path.name == "api.md" else scope, shell)
        else:
            for command in block.commands():
                shell.run(command)
    if shell.missing:  # all else has been run
        pytest.skip("; ".join(shell.missing))


def python(block: Block, scope: dict[str, object], shell: "Shell") -> None:
    if file := re.match(r"# (\w+\.py)\n", block.body):
        (shell.folder / file[1]).write_text(stock.MY_MODEL + block.body)
        return
    shell.fetch(re.findall(r'"([\w./-]+)"', block.body) + re.findall(r"from (my_model) import", block.body))
    exec(compile(block.body, "page", "exec"), scope)


class Shell:
    def __init__(self, folder, shelf, monkeypatch):
        self.folder, self.shelf, self.monkeypatch = folder, shelf, monkeypatch
        self.missing: list[str] = []

    def fetch(self, named):
        """Puts what is named into the folder, where it is not there already."""
        for name in named:
            name = re.sub(r"^(my_model)(:\w+)?$", r"\1.py", name)
            if name in stock.STOCK and not (self.folder / name).exists():
                if not (self.shelf / name).exists():
                    stock.STOCK[name](self.shelf / name)
                copy = shutil.copytree if (self.shelf / name).is_dir() else shutil.copy
                copy(self.shelf / name, self.folder / name)

    def run(self, command):
        settings, rest = words(command)
        assert rest[0] == "feta", f"'{command}' must be marked with why it is not run, or be a command of feta"
        written = [name for option, name in itertools.pairwise(rest) if option in WRITES]
        for name in written:  # as in an empty folder
            place = self.folder / name
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        try:
            self.fetch([word for word in rest if word not in written])
        except pytest.skip.Exception as reason:
            self.missing.append(str(reason))
            return
        with self.monkeypatch.context() as here:
            for name, value in settings.items():
                here.setenv(name, value)
            here.setattr(sys, "argv", rest)
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code, command


def test_the_runner_sees_faults(shelf, monkeypatch, tmp_path):
    """Guards the test above."""
    shell = Shell(tmp_path / "here", shelf, monkeypatch)
    with pytest.raises(AssertionError, match="must be marked"):
        shell.run("make demo")
    with pytest.raises(AssertionError, match="nowhere"):
        shell.run("feta info nowhere.safetensors")
    with pytest.raises(ZeroDivisionError):
        python(Block("python", "1 / 0", None), {}, shell)
    assert torch.get_num_threads() == 1
