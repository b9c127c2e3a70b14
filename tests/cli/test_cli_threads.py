"""OpenMP's threads sleep while they wait, unless the user wants otherwise."""

import os
import subprocess
import sys

import pytest

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# What torch finds in the environment at the moment it is imported by a command.
SCRIPT = """
import json, os, sys

class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.write(1, json.dumps([os.environ.get(key) for key in %r]).encode())
            os._exit(0)

sys.meta_path.insert(0, Look())
sys.argv = ["feta", "prune", sys.executable]  # any file that is there
from feta.cli import main
main()
"""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, '["PASSIVE", "0"]'),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, '["ACTIVE", null]'),
        ({"GOMP_SPINCOUNT": "1000"}, '[null, "1000"]'),
    ],
)
def test_the_policy_is_set_before_torch_and_the_users_own_wins(given, found):
    environment = {key: value for key, value in os.environ.items() if key not in NAMES} | given
    command = [sys.executable, "-c", SCRIPT % (NAMES,)]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (answer.stdout, answer.stderr) == (found, "")


def test_a_process_that_has_torch_is_left_as_it_is(run, monkeypatch):
    import torch  # noqa: F401

    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    run("prune none.safetensors").refused("cannot read")
    assert not any(name in os.environ for name in NAMES)
