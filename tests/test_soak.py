"""A bounded part of every soak; `make soak` runs them in full."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the harness lies beside the tests, and is no part of the product

from soak.__main__ import kinds  # noqa: E402

FEW = {"problems": 120, "certificates": 300, "misuse": 80, "files": 400, "kills": 2, "pages": 30}


@pytest.mark.parametrize("kind", kinds())
def test_a_bounded_part_finds_nothing_wrong(kind):
    tally = importlib.import_module(f"soak.{kind}").run(FEW.get(kind, 20), seed=0)
    assert tally.tried >= FEW.get(kind, 1)
    assert not tally.wrong, str(tally)
