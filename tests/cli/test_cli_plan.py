"""feta plan: a network and a time in, a choice and the commands for it out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from feta.cli import app
from feta.lab.records import read

STAGES = {"prune", "refine", "retrain"}


def test_json_holds_the_advice_and_commands_that_parse(run, trained):
    answer = run("plan", trained, "--budget", "10s", "--sparsity", "0.8", "--device", "cpu", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert (found["budget"], found["sparsity"], found["device"]) == (10.0, 0.8, "cpu")
    assert found["spent"] > 0
    advice = found["advice"]
    assert advice["stage"] in STAGES
    assert advice["sure"] in ("sure", "likely", "a guess")
    assert 0 <= advice["chance"] <= 1
    weighed = {(one["method"], one["stage"]) for one in found["candidates"]}
    assert ("threshold", "prune") in weighed
    assert (advice["method"], advice["stage"]) in weighed
    assert len(found["commands"]) == (2 if advice["stage"] == "retrain" else 1)
    for line in found["commands"]:
        name, *rest = shlex.split(line)
        assert name == "feta"
        app.parse_args(rest, exit_on_error=False, print_error=False)
    (record,) = read(Path("feta-records.jsonl"))
    assert record["kind"] == "plan"
    assert record["metrics"]["advice"] == advice
    assert str(trained.parent) not in json.dumps(record)  # no paths in records


def test_commands_run_as_printed(run, trained, mini, tmp_path):
    """Nothing that was given is left out or rounded: 0.9999999 is not 1."""
    from feta.cli.plan import commands
    from feta.lab.extrapolation import Estimate
    from feta.lab.planning import Advice, Candidate, Task
    from feta.lab.probing import Plan

    many = Estimate(1.0, 0.0)
    choice = Candidate("threshold", "retrain", many, many, True, limit=1234567.89)
    found = Plan(Advice(choice, 1.0, (choice,)), Task(100, 90.0, 100, 0.1), 10.0, 1.0, {})
    prune, retrain = commands(found, trained, 0.9999999, 3, "cpu", tmp_path / "my data")
    where = ["--seed", "3", "--device", "cpu", "--data-dir", str(tmp_path / "my data")]
    pruned, last = (str(trained.with_name(f"net-{word}.safetensors")) for word in ("pruned", "retrained"))
    assert shlex.split(prune) == [
        "feta", "prune", str(trained), "--method", "threshold", "--sparsity", "0.9999999", *where, "-o", pruned,
    ]  # fmt: skip
    limits = ["--epochs", "30", "--patience", "5.0", "--seconds", "1234567.8"]
    assert shlex.split(retrain) == ["feta", "retrain", pruned, *limits, *where, "-o", last]
    answer = run("plan", trained, "--budget", "1s", "--data-dir", tmp_path, "--json")
    (line, *_) = json.loads(answer.out)["commands"]
    assert f"--data-dir {tmp_path}" in line
    assert run(*shlex.split(line)[1:]).code == 0


def test_for_people(run, trained):
    answer = run("plan", trained, "--budget", "5s")
    assert answer.code == 0
    assert "planning took" in answer.out
    assert "% of 5.0 s" in answer.out
    assert "  feta prune" in answer.out


def test_no_time_at_all(run, trained):
    answer = run("plan", trained, "--budget", "0.001s")
    assert answer.code == 0
    assert "nothing fits into what is left; the quickest: prune by threshold" in answer.out
    assert "feta is left out: " in answer.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "5"), "--budget must be a time > 0 such as 30s, 5m or 1h, got '5'"),
        (("--budget", "soon"), "got 'soon'"),
        (("--budget", "5m", "--sparsity", "1.5"), "--sparsity must be"),
        (("--budget", "5m", "--device", "abacus"), "--device must be"),
    ],
)
def test_refused(run, trained, arguments, words):
    run("plan", trained, *arguments).refused(words)
