"""feta as a program of its own: exit codes, streams, and how little it takes to say help."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import feta
from feta.cli import LAB_COMMANDS
from feta_lab.records import read

PRODUCT = ("prune", "retrain", "eval", "info", "bounds", "certify", "methods")
COMMANDS = ("", *PRODUCT, *LAB_COMMANDS, "data list", "data check", "data fetch")


# The program with fits of few steps, and with some of the demo's sparsities.
QUICK = """
import feta.engine.recipe, feta_lab.demo
feta.engine.recipe.STEPS, feta_lab.demo.SPARSITIES = 200, (0.5, 0.9, 0.98)
from feta.cli import main
main()
"""


def process(line: str, *program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    command = [sys.executable, *(program or ("-m", "feta")), *line.split()]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


HELP = """
import contextlib, io, json, sys
from feta.cli import app

heavy, texts = {}, {}
for command in sys.stdin.read().split(","):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            app([*command.split(), "--help"])
        except SystemExit as ended:
            assert not ended.code, ended.code
    texts[command] = text.getvalue()
    heavy[command] = [m for m in ("torch", "numpy", "matplotlib", "pandas", "safetensors") if m in sys.modules]
print(json.dumps([heavy, texts]))
"""


def test_every_command_has_help_without_torch():
    command = [sys.executable, "-c", HELP]
    answer = subprocess.run(command, input=",".join(COMMANDS), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    heavy, texts = json.loads(answer.stdout)
    assert heavy == {command: [] for command in COMMANDS}
    for command, text in texts.items():
        assert text.startswith(f"Usage: feta {command}".rstrip())
    options = ("sparsity", "method", "layers", "samples", "mode", "json", "output", "seed", "refine-steps")
    for option in (*options, "effort", "seconds"):
        assert f"--{option}" in texts["prune"]


@pytest.mark.parametrize("line", ["--help", "prune --help", "--version"])
def test_help_as_people_ask_for_it(line):
    answer = process(line)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("Usage: feta" if "--help" in line else feta.__version__)


def test_the_script_is_the_same_program():
    script = Path(sys.executable).with_name("feta")
    if not script.exists():
        pytest.skip(f"{script} is not installed")
    answer = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert answer.stdout.strip() == feta.__version__


def test_prune_writes_one_json_object_or_one_line_of_error(trained):
    answer = process(f"prune {trained} --json -o out.safetensors")
    # How far it is is said every ten seconds, which a busy machine may need.
    said = [line for line in answer.stderr.splitlines() if not line.startswith("feta: pruning by ")]
    assert (answer.returncode, said, answer.stdout.count("\n")) == (0, [], 1)
    assert json.loads(answer.stdout)["layers"][0]["nonzeros"] == 4704
    assert os.listdir() == ["out.safetensors"]
    answer = process(f"prune {trained} --sparsity 2")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "feta: --sparsity must be in [0, 1), got 2.0; write 0.02 for 2 %\n"


@pytest.mark.parametrize("line", ["prun", "prune", "prune x --bogus", "prune x --seed a", "train dense-mnist"])
def test_usage_errors_are_not_a_success(run, line):
    answer = run(line)
    assert answer.code != 0
    assert answer.out == ""
    assert "Error" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.slow
def test_the_demo_as_people_run_it():
    answer = process("demo -o out --seed 0", "-c", QUICK)
    assert answer.returncode == 0, answer.stderr
    assert "test accuracy before pruning" in answer.stdout
    assert "written: out/report.html" in answer.stdout
    assert Path("out/report.html").is_file()
    assert read(Path("out/records.jsonl"))[0]["metrics"]["accuracy"]["dense"]["test"] > 90
    assert feta.load("out/pruned.safetensors").info.pruning["target_sparsity"] == 0.9


def test_a_reader_that_goes_away_ends_it_as_other_programs():
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = "from feta.cli.console import out; out().print('a line')"
    ended = subprocess.run([sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (141, b"")
