"""Several processes on one job: the same networks as one process finds, equal in all of them, and failures told."""

import os
import signal
import time
from typing import Any

import pytest
import torch

import feta
import job_tasks
import jobs

FETA: dict[str, Any] = {"method": "feta", "double": True}
JOBS = {
    "dense, in float32": {"kind": "dense", "count": 200, "method": "feta"},
    "correlated inputs": {"kind": "pixels", "count": 600, "method": "feta", "settings": {"batch_size": 50}},
    "correlated inputs, all steps": {
        "kind": "pixels",
        "count": 300,
        "effort": "fast",
        "options": {"quality": "best"},
        "settings": {"batch_size": 50},
    },
    **{
        f"columns shared out, {method}": {
            "kind": "pixels",
            "count": 300,
            "method": method,
            "columns": 16,
            "settings": {"batch_size": 50},
            "options": options,
        }
        for method, options in {
            "feta": {},
            "alps": {},
            "sparsegpt": {},
            "exact-obs": {"batch_bytes": 2**19},
            "wanda": {},
            "threshold": {},
        }.items()
    },
    "very small inputs": {"kind": "pixels", "count": 300, "method": "feta", "scale": 1e-25},
    "convolutions in groups, a batch-norm": {"kind": "conv", "count": 90, **FETA},
    "sampled rows": {"kind": "conv", "count": 60, "options": {"sample": 400}, **FETA},
    "text": {"kind": "text", "count": 41, **FETA},
    "segments, sensitivities, compensation": {"kind": "deep", "count": 120, "double": True, "effort": "fast"},
    "fewer samples than processes": {"kind": "dense", "count": 3, **FETA},
    "a loader": {"kind": "dense", "count": 100, "data": "loader", **FETA},
    "rows that every process must see": {"kind": "dense", "count": 100, "method": "corenet", "double": True},
    "many passes over rows of all": {"kind": "dense", "count": 60, "method": "net-trim", "double": True},
    "a pattern": {"kind": "dense", "count": 100, "method": "alps", "double": True, "pattern": "2:4", "share": None},
    "a fit": {"kind": "dense", "count": 100, "refine": feta.Refinement(steps=20), **FETA},
    "a fit of text": {"kind": "text", "count": 30, "refine": feta.Refinement(steps=6, learning_rate=1e-3), **FETA},
    "a budget of seconds": {"kind": "dense", "count": 60, "effort": "default", "seconds": 2, "double": True},
}
TIMED = "a budget of seconds"
TO_THE_BIT = tuple(name for name, job in JOBS.items() if job["kind"] == "pixels")
IN_FOUR = (*TO_THE_BIT, "convolutions in groups, a batch-norm", "text", "fewer samples than processes", "a fit")


@pytest.fixture(scope="module")
def alone():
    return {name: job_tasks.pruned(**job) for name, job in JOBS.items() if name != TIMED}


@pytest.fixture(scope="module")
def two():
    """What two processes did, one thing after the other: starting them takes longer than all of it."""
    return jobs.run(2, "job_tasks:everything", jobs=JOBS)


def compared(alone, found):
    """Equal in all processes to the last bit, and what one process finds."""
    for name in found[0]:
        weights = [process[name]["weights"] for process in found]
        for other in weights[1:]:
            assert all(torch.equal(weights[0][key], other[key]) for key in other), f"{name}: not equal in all"
        if name == TIMED:  # others take other numbers of steps
            continue
        one, many = alone[name], found[0][name]
        for key, weight in one["weights"].items():
            assert torch.equal(weight != 0, many["weights"][key] != 0), f"{name}: another support of {key}"
            near = 0.0 if name in TO_THE_BIT else 1e-5
            assert torch.allclose(weight, many["weights"][key], rtol=near, atol=near), f"{name}: {key}"
        for (*layer, error, status), (*same, other, told) in zip(one["layers"], many["layers"], strict=True):
            assert (layer, status) == (same, told), name
            assert error is None or other == pytest.approx(error, rel=1e-4, abs=1e-5), f"{name}: {layer}"


@pytest.mark.filterwarnings("ignore")
def test_two_processes_find_what_one_finds(alone, two):
    assert set(two[0]["pruned"]) == set(JOBS)
    compared(alone, [process["pruned"] for process in two])


@pytest.mark.filterwarnings("ignore")
def test_four_processes_find_what_one_finds(alone):
    compared(alone, jobs.run(4, "job_tasks:prune_all", jobs={name: JOBS[name] for name in IN_FOUR}))


def test_data_of_each_process_is_put_together(two):
    first, second = (process["shards"] for process in two)
    assert all(torch.equal(first["told"][key], second["told"][key]) for key in first["told"])
    assert all(torch.equal(first["told"][key], first["sampler"][key]) for key in first["told"])
    for key, weight in job_tasks.pruned_in_turn().items():
        assert torch.allclose(weight, first["told"][key], rtol=1e-5, atol=1e-5)


def test_what_differs_between_processes_is_refused(two):
    for rank, process in enumerate(two):
        said = process["unlike"]
        assert "model must be the same in all processes, got another in process 1" in said["model"]
        assert "data must be the same in all processes" in said["data"]
        assert "data='sharded'" in said["data"]
        assert said["alone"] == f"process {rank} by itself"
        assert "one of torch's fully_shard and parallelize_module, got '2.weight' spread by both" in said["spread"]


def test_a_network_spread_by_fully_shard_is_pruned_as_if_it_were_whole_and_spread_again(two):
    for process in two:
        found = process["spread"]
        assert all(torch.equal(found["whole"][name], found["spread"][name]) for name in found["whole"])
        assert found["kinds"] == [True, True, False, True, True, False, False, False]
        assert found["local"]["0.0.weight"] == (5, 10)
        assert found["after"] == [True, True]
        assert found["unharmed"]
        assert found["hooked"] == 1
        assert found["outputs"] < 1e-6


def test_an_error_in_one_process_ends_all_with_its_reason(two):
    assert two[1]["failed"] == "the callback has had enough"
    assert two[0]["failed"] == "process 1 of 2: the callback has had enough"


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_job(tmp_path, killed):
    processes = jobs.start(2, "job_tasks:prune_slowly", tmp_path)
    while not (tmp_path / "busy").exists() and all(process.is_alive() for process in processes):
        time.sleep(0.05)
    os.kill(processes[killed].pid, signal.SIGKILL)
    code, said = jobs.finished(processes, tmp_path)[1 - killed]
    assert code == 1
    assert "process of the job is gone" in said
