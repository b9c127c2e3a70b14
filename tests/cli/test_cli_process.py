"""feta as a program of its own: exit codes, streams, and how little it takes to say help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import feta
from feta_lab.records import read

COMMANDS = (
    (),
    ("demo",),
    ("train",),
    ("prune",),
    ("eval",),
    ("info",),
    ("methods",),
    ("data",),
    ("data", "list"),
    ("data", "check"),
    ("data", "fetch"),
)


def process(*arguments: str | Path, start=("-m", "feta")) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)], capture_output=True, text=True, env=environment
    )


HELP = """
import contextlib, io, json, sys
from feta.cli import app

heavy, texts = {}, {}
for command in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            app([*command, "--help"])
        except SystemExit as ended:
            assert not ended.code, ended.code
    name = " ".join(command)
    texts[name] = text.getvalue()
    heavy[name] = [m for m in ("torch", "numpy", "matplotlib", "safetensors") if m in sys.modules]
print(json.dumps([heavy, texts]))
"""


@pytest.fixture(scope="module")
def help_texts():
    answer = process(json.dumps(COMMANDS), start=("-c", HELP))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(help_texts, command):
    text = help_texts[1][" ".join(command)]
    assert text.startswith("Usage: feta" + "".join(f" {word}" for word in command))
    assert "--help" in help_texts[1][""]


def test_help_needs_no_torch(help_texts):
    assert help_texts[0] == {" ".join(command): [] for command in COMMANDS}


def test_the_help_of_prune_names_its_options(help_texts):
    for option in (
        "--sparsity",
        "--method",
        "--layers",
        "--samples",
        "--mode",
        "--json",
        "--output",
        "--seed",
    ):
        assert option in help_texts[1]["prune"]


@pytest.mark.parametrize("arguments", [("--help",), ("prune", "--help")])
def test_help_as_people_ask_for_it(arguments):
    answer = process(*arguments)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("Usage: feta")


def test_version():
    answer = process("--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, feta.__version__)


def test_the_script_is_the_same_program():
    script = Path(sys.executable).with_name("feta")
    if not script.exists():
        pytest.skip(f"{script} is not installed")
    answer = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert answer.stdout.strip() == feta.__version__


def test_prune_writes_one_json_object_and_nothing_else(trained):
    answer = process("prune", trained, "--json", "-o", "out.safetensors")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.count("\n") == 1
    assert json.loads(answer.stdout)["layers"][0]["nonzeros"] == 4704
    assert sorted(os.listdir()) == ["feta-records.jsonl", "out.safetensors"]
    (entry,) = read(Path("feta-records.jsonl"))
    assert entry["environment"]["commit"]


def test_an_error_is_one_line_and_exit_code_1(trained):
    answer = process("prune", trained, "--sparsity", "2")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "feta: --sparsity must be in [0, 1), got 2.0; write 0.02 for 2 %\n"


@pytest.mark.parametrize(
    "arguments", [("prun",), ("prune",), ("prune", "x", "--bogus"), ("prune", "x", "--seed", "a")]
)
def test_usage_errors_are_not_a_success(arguments):
    answer = process(*arguments)
    assert answer.returncode != 0
    assert answer.stdout == ""
    assert "Error" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
def test_the_demo_as_people_run_it():
    answer = process("demo", "-o", "out", "--seed", "0")
    assert answer.returncode == 0, answer.stderr
    assert "test accuracy before pruning" in answer.stdout
    assert "written: out/report.html" in answer.stdout
    made = {path.name for path in Path("out").iterdir()}
    assert {"dense.safetensors", "pruned.safetensors", "records.jsonl", "report.html"} <= made
    runs = read(Path("out/records.jsonl"))
    assert runs[0]["metrics"]["accuracy"]["dense"]["test"] > 90
    pruned = feta.load("out/pruned.safetensors")
    assert pruned.info.pruning["target_sparsity"] == 0.9
