"""feta prune by torchrun, and a run that goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import feta

CODE = """
import os

import torch
from torch import nn


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 14), nn.ReLU(), nn.Linear(14, 5)).double()
"""
SOURCE = str(Path(__file__).parents[2] / "src")
ASKED = "prune mine:make --data rows.safetensors --method feta --sparsity 0.7"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    save_file({"x": torch.randn(80, 12, generator=torch.Generator().manual_seed(3))}, "rows.safetensors")
    return tmp_path


def weights(name):
    sizes = nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 14), nn.ReLU(), nn.Linear(14, 5)
    return feta.load_into(nn.Sequential(*sizes).double(), f"{name}.safetensors").state_dict()


def test_torchrun_gives_one_file_and_one_table(place, run):
    path = os.pathsep.join([SOURCE, str(place), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "feta", *ASKED.split()]
    answer = subprocess.run(
        [*command, "-o", "two.safetensors"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("written to two.safetensors") == 1
    assert run(f"{ASKED} -o one.safetensors").code == 0
    one, two = weights("one"), weights("two")
    for name, tensor in one.items():
        assert torch.equal(tensor != 0, two[name] != 0)
        torch.testing.assert_close(tensor, two[name], rtol=1e-5, atol=1e-5)


def test_resume_keeps_nothing_behind_and_needs_an_output(place, run):
    assert run(f"{ASKED} -o plain.safetensors").code == 0
    assert run(f"{ASKED} -o again.safetensors --resume").code == 0
    assert not Path("again.safetensors.resume").exists()
    plain, again = weights("plain"), weights("again")
    assert all(torch.equal(tensor, again[name]) for name, tensor in plain.items())
    assert "--resume must go with --output" in run(f"{ASKED} --resume").err


def test_another_run_is_named_with_the_option_and_what_differs(place, run, monkeypatch):
    monkeypatch.setattr("feta.engine.checkpoint.Checkpoint.remove", lambda self: None)
    assert run(f"{ASKED} -o out.safetensors --resume").code == 0
    answer = run(f"{ASKED} -o out.safetensors --resume --force --seed 5")
    answer.refused(
        "feta: --resume: the checkpoint ",
        "out.safetensors.resume must be of this run, got one that differs in seed; ask",
    )
