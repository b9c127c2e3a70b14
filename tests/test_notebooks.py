"""The notebooks run from the first cell to the last, and are stored without outputs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SAYS = {
    "prune_a_cnn": ("% of the test digits are right", "times smaller", "ms sparse", "threshold  "),
    "prune_a_language_model": (
        "perplexity",
        "70.00 % of the weights",
        "default",
        "bytes →",
        "anna pushes hugo and hugo falls",
    ),
}


def cells(name: str) -> list[dict]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def test_every_notebook_is_run():
    assert sorted(SAYS) == sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", SAYS)
def test_outputs_are_not_stored(name):
    for cell in cells(name):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", SAYS)
def test_notebook_runs(name, tmp_path):
    code = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    for cell in code:
        ast.parse(cell)  # plain Python: nothing that needs a notebook
    answer = subprocess.run(
        [sys.executable, "-c", "\n\n".join(code)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    for text in SAYS[name]:
        assert text in answer.stdout
