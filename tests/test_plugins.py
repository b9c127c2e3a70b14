"""The product without the laboratory: it prunes, saves and loads, and says where the rest is to be had."""

import subprocess
import sys

import pytest

from feta.errors import ConfigError
from feta.plugins import added, required

# Nothing of the laboratory, nor what only it needs, can be imported, and no package adds anything.
ALONE = """
import importlib.machinery, importlib.metadata, sys

found = importlib.machinery.PathFinder.find_spec

def without(name, path=None, target=None):
    away = name.split(".")[0] in ("feta_lab", "jinja2", "matplotlib", "pandas", "tabulate")
    return None if away else found(name, path, target)

importlib.machinery.PathFinder.find_spec = without
importlib.metadata.entry_points = lambda **kwargs: ()
"""
PRUNES = """
import torch, feta, feta.engine.recipe
torch.manual_seed(0)
feta.engine.recipe.STEPS = 100
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
feta.save(feta.prune(model, torch.randn(200, 20), 0.9).model, "pruned.safetensors")
again = feta.load_into(model, "pruned.safetensors")
print(int(again[0].weight.count_nonzero()))
"""
COMMAND = """
sys.argv = ["feta", *{arguments!r}]
from feta.cli import main
main()
"""


def alone(script, folder):
    return subprocess.run(
        [sys.executable, "-c", ALONE + script], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_the_product_prunes_by_itself(tmp_path):
    answer = alone(PRUNES, tmp_path)
    assert (answer.stdout.strip(), answer.stderr) == ("60", "")


def test_help_shows_the_products_commands_alone(tmp_path):
    answer = alone(COMMAND.format(arguments=["--help"]), tmp_path)
    assert answer.returncode == 0
    assert "Prune a network and report" in answer.stdout
    assert "reproduce" not in answer.stdout


@pytest.mark.parametrize("command", ["demo", "train", "data", "bench", "reproduce", "report"])
def test_commands_of_the_laboratory_say_how_to_get_them(command, tmp_path):
    answer = alone(COMMAND.format(arguments=[command, "--help"]), tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == (
        f"feta: '{command}' is a command of the laboratory, which is not installed; in a clone of feta: "
        "python -m pip install ./src/feta_lab\n"
    )


def test_what_the_laboratory_adds():
    assert set(added("feta.commands")) >= {"demo", "train", "data", "bench", "reproduce", "report"}
    for group in ("feta.commands", "feta.networks", "feta.subjects", "feta.pages"):
        for entry in added(group).values():
            assert entry.load() is not None
    with pytest.raises(ConfigError, match=r"a picture needs the laboratory, .*feta_lab"):
        required("feta.pictures", "paper", "a picture")
