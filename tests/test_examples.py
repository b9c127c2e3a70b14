"""Every example runs as a user would run it but for the steps of fits, stays short, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SAYS = {
    "prune_your_model": ("feta: 90.00 % of the weights of 2 layers zero", "loaded weights are the same: True"),
    "shrink_cnn": ("% of the multiply-adds removed", "→", "% test accuracy"),
    "compare_methods": ("threshold", "wanda", "sparsegpt", "alps", "feta", "4704"),
    "serve_sparse": ("batch  1:", "ms dense", "ms sparse", "100.0 % the same answers", "% right"),
    "custom_pruner": ("threshold", "centred", "feta", "% test accuracy"),
}
# As `python FILE`, with fewer steps.
RUN = """
import runpy, sys
import feta.engine.recipe
feta.engine.recipe.STEPS = 400
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_every_example_is_run():
    assert sorted(SAYS) == sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", SAYS)
def test_example(name, tmp_path):
    path = FOLDER / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, str(path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    for text in SAYS[name]:
        assert text in answer.stdout
    assert list(tmp_path.iterdir()) == []
