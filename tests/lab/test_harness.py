"""The harness: a record per cell, resumed after a kill, failures as data, budgets that hold."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from feta.errors import ConfigError, DataError, FileError
from feta_lab.experiments.harness import run_cells
from feta_lab.records import append, latest, read

CELLS = [{"name": name, "seed": seed} for seed in (0, 1) for name in ("a", "b")]


def count(log, cell):
    """Leaves a trace of every run."""
    with open(log, "a") as file:
        file.write(f"{cell['name']}{cell['seed']}\n")
    return {"accuracy": 90.0 + cell["seed"]}


def runs(log):
    return Path(log).read_text().split() if Path(log).exists() else []


def misbehave(cell):
    """What methods do: work, refuse, crash, hang, take the process down."""
    name = cell["name"]
    if name == "refuses":
        raise ConfigError("layer 'fc1' is too large")
    if name == "no-disk":
        raise FileError("cannot write pruned/x.safetensors: Permission denied")
    if name == "crashes":
        raise ZeroDivisionError("division by zero")
    if name == "not-a-number":
        return {"accuracy": float("nan")}
    if name == "hangs":
        Path(tempfile.mkdtemp(), "rows.bin").write_bytes(b"0")
        time.sleep(600)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"accuracy": 50.0, "process": os.getpid()}


def slow_to_prepare(cell):
    time.sleep(0.6)
    return {"dense_accuracy": 99.0}


def no_data(cell):
    raise DataError("no data set 'mnist'")


def run(cells, run_one, path, **options):
    return run_cells("test", cells, run_one, path, **options)


def entry(name, seed, **fields):
    return {"kind": "test", "key": {"name": name, "seed": seed}, "name": name, "seed": seed, **fields}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out" / "records.jsonl"


def test_a_record_per_cell_in_order(path, tmp_path):
    told = []
    records = run(CELLS, functools.partial(count, tmp_path / "log"), path, tell=told.append)
    assert [(r["name"], r["seed"]) for r in records] == [(c["name"], c["seed"]) for c in CELLS]
    assert read(path) == records
    assert all(r["timed"] is True and r["environment"]["commit"] for r in records)
    assert [(r["kind"], r["key"]) for r in records] == [("test", cell) for cell in CELLS]
    assert [r["accuracy"] for r in records] == [90.0, 90.0, 91.0, 91.0]
    assert told == ["1/4 seed 0", "2/4 seed 0", "3/4 seed 1", "4/4 seed 1"]


def test_recorded_cells_are_not_run_again(path, tmp_path):
    one = functools.partial(count, tmp_path / "log")
    run(CELLS[:2], one, path)
    with open(path, "a") as file:
        file.write('{"name": "a", "seed": 1, "accu')  # killed while it wrote
    records = run(CELLS, one, path)
    assert runs(tmp_path / "log") == ["a0", "b0", "a1", "b1"]
    assert read(path) == records


def test_without_resume_every_cell_runs_and_its_last_record_counts(path, tmp_path):
    append(path, entry("c", 0, accuracy=1.0))
    append(path, entry("a", 0, accuracy=2.0))
    append(path, {"name": "a", "seed": 0})  # of no kind, and so of no cell
    records = run(CELLS, functools.partial(count, tmp_path / "log"), path, resume=False)
    assert runs(tmp_path / "log") == ["a0", "b0", "a1", "b1"]
    assert len(read(path)) == 7  # nothing is rewritten: another command may be adding to the file
    first, *others = latest(read(path)).values()
    assert first == entry("c", 0, accuracy=1.0)
    assert others == records


def test_two_commands_that_share_a_file_lose_nothing(path):
    cells = [{"name": name, "seed": seed} for name in ("a", "b") for seed in range(60)]
    for cell in cells:
        append(path, entry(**cell, accuracy=None, failure="error"))
    script = """
import sys
from pathlib import Path
from feta_lab.experiments.harness import run_cells
path, name = Path(sys.argv[1]), sys.argv[2]
cells = [{"name": name, "seed": seed} for seed in range(60)]
path.with_name(name).touch()
while not all(path.with_name(other).exists() for other in "ab"):  # at once
    pass
run_cells("test", cells, lambda cell: {"accuracy": 1.0}, path)
"""
    commands = [subprocess.Popen([sys.executable, "-c", script, str(path), name]) for name in "ab"]
    assert [command.wait(120) for command in commands] == [0, 0]
    assert len(read(path)) == 2 * len(cells)
    found = latest(read(path)).values()
    assert [(r["name"], r["seed"], r["accuracy"]) for r in found] == [(*c.values(), 1.0) for c in cells]


SCRIPT = """
import sys, tempfile, time
from pathlib import Path
from feta.cli import _end_in_order
from feta_lab.experiments.harness import run_cells
def one(cell):
    if cell["seed"]:
        Path(tempfile.mkdtemp(), "rows.bin").write_bytes(b"0")
        Path(sys.argv[1]).touch()
        time.sleep(600)
    return {"accuracy": 1.0}
if __name__ == "__main__":
    _end_in_order()  # as every command does
    cells = [{"name": name, "seed": seed} for seed in (0, 1) for name in "ab"]
    run_cells("test", cells, one, Path(sys.argv[2]), jobs=int(sys.argv[3]))
"""


def hanging(path, tmp_path, jobs):
    """A run of CELLS that has done the first and hangs in another."""
    script, reached = tmp_path / "run.py", tmp_path / "reached"
    script.write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, str(script), str(reached), str(path), str(jobs)]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    while not (reached.exists() and path.exists()):
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_a_run_that_is_killed_loses_nothing_that_was_done(path, tmp_path):
    process = hanging(path, tmp_path, jobs=1)
    process.kill()
    process.wait()
    run(CELLS, functools.partial(count, tmp_path / "log"), path)
    assert runs(tmp_path / "log") == ["a1", "b1"]
    assert [r["accuracy"] for r in read(path)] == [1.0, 1.0, 91.0, 91.0]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_no_files_behind(path, tmp_path, how, monkeypatch):
    """Workers in a cell with a file of their own, or waiting for work."""
    process, place = hanging(path, tmp_path, jobs=3), tmp_path / "tmp"
    assert list(place.glob("feta-cells-*"))
    process.send_signal(how)
    process.wait()
    if how == signal.SIGKILL:  # Linux ends the workers in the same moment: nobody is left to tidy up but the next run
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        run(CELLS, functools.partial(count, tmp_path / "log"), path, jobs=2)
    assert list(place.iterdir()) == []


HOGS = """
import os, re, sys
from pathlib import Path
from feta_lab.experiments.harness import run_cells

def hog(cell):
    Path(sys.argv[1]).write_text(str(os.getpid()))
    re.match("(a+)+$", "a" * 60 + "b")  # for years, without letting another thread of its process run

if __name__ == "__main__":
    run_cells("test", [{"name": "a"}], hog, Path(sys.argv[2]), cell_budget=600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread watches the parent")
def test_a_worker_that_lets_no_thread_run_ends_with_its_parent_too(path, tmp_path):
    script, reached = tmp_path / "run.py", tmp_path / "pid"
    script.write_text(HOGS)
    with subprocess.Popen([sys.executable, str(script), str(reached), str(path)]) as process:
        while not (reached.exists() and reached.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    worker, until = Path("/proc") / reached.read_text() / "stat", time.monotonic() + 20
    try:
        # Its new parent may leave it for some time in the list of processes, as a dead one.
        while worker.exists() and worker.read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(reached.read_text()), signal.SIGKILL)


def failing(*names):
    return [{"name": name, "seed": 0} for name in names]


def test_failures_are_records_with_reasons(path):
    told = []
    names = ("works", "refuses", "crashes", "not-a-number")
    works, refuses, crashes, nan = run(failing(*names), misbehave, path, tell=told.append)
    assert works["accuracy"] == 50.0
    assert "reason" not in works
    assert (refuses["failure"], refuses["reason"]) == ("refused", "layer 'fc1' is too large")
    assert (crashes["failure"], crashes["reason"]) == ("error", "ZeroDivisionError: division by zero")
    assert nan["failure"] == "error"
    assert refuses["accuracy"] is crashes["accuracy"] is nan["accuracy"] is None
    assert "seed 0: layer 'fc1' is too large" in told


def test_a_refusal_is_final_and_a_crash_is_tried_again(path, tmp_path):
    names = ("refuses", "crashes", "no-disk")
    *_, no_disk = run(failing(*names), misbehave, path)
    assert (no_disk["failure"], no_disk["reason"][:23]) == ("error", "cannot write pruned/x.s")
    records = run(failing(*names), functools.partial(count, tmp_path / "log"), path)
    assert runs(tmp_path / "log") == ["crashes0", "no-disk0"]
    assert list(latest(read(path)).values()) == records


def test_over_budget_and_dead_processes(path, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ("works", "refuses", "works-still", "hangs", "dies", "works-too")
    records = run(failing(*names), misbehave, path, cell_budget=0.5, prepare=slow_to_prepare)
    works, _, still, hangs, dies, after = records
    assert [r.get("failure") for r in records] == [None, "refused", None, "budget", "died", None]
    # Preparing takes longer than the budget, and does not count.
    assert all(r["dense_accuracy"] == 99.0 for r in records)
    assert hangs["reason"] == "stopped after its budget of 0.5 s"
    assert "exit code -9" in dies["reason"]
    # One process for as long as it lives.
    assert os.getpid() != works["process"] == still["process"] != after["process"]
    assert works["environment"] == after["environment"]
    assert list(tmp_path.glob("feta-cells-*")) == []  # nor does a process that was ended leave files behind
    # A cell that was stopped is run again only when it is given more time.
    one = functools.partial(count, tmp_path / "log")
    assert run(failing("hangs"), one, path, cell_budget=0.5) == [hangs]
    assert run(failing("hangs"), one, path)[0]["accuracy"] == 90.0


def test_several_at_once_are_not_timed(path, tmp_path):
    records = run(CELLS, functools.partial(count, tmp_path / "log"), path, jobs=2)
    assert sorted(runs(tmp_path / "log")) == ["a0", "a1", "b0", "b1"]
    assert [(r["name"], r["seed"]) for r in records] == [(c["name"], c["seed"]) for c in CELLS]
    assert all(r["timed"] is False and r["environment"]["threads"] == "1" for r in records)


@pytest.mark.parametrize("budget", [None, 60.0])
def test_what_cannot_be_prepared_ends_the_run(path, budget):
    with pytest.raises(DataError, match="no data set 'mnist'"):
        run(CELLS, misbehave, path, prepare=no_data, cell_budget=budget)
    assert not path.exists()


def test_cells_must_differ(path):
    with pytest.raises(ConfigError, match="cells of test must differ, got 1 twice"):
        run([*CELLS, CELLS[0]], misbehave, path)
