"""Networks spread over processes, by fully_shard or tensor parallelism, pruned as if each process had all of them."""

import pytest

import jobs
import spread_tasks

NORM = 2 * spread_tasks.WIDTH  # which goes with the last block
BLOCK = 4 * (NORM + sum(p.numel() for p in spread_tasks.Block().parameters()))  # bytes
OUTSIDE = 4 * (2 * spread_tasks.WORDS + 2) * spread_tasks.WIDTH  # of the table, the scores and the norm


@pytest.fixture(scope="module")
def two():
    return jobs.run(2, "spread_tasks:everything")


@pytest.fixture(params=["tied", "normed", "anew", "no data", "parallel"])
def found(two, request):
    """Of each process: what came of a network that was walked block by block."""
    name = request.param
    return [process["parallel"]["blocks"] if name == "parallel" else process["shards"][name] for process in two]


def test_the_result_is_that_of_the_network_in_every_process(found):
    for process in found:
        assert process["names"]
        assert process["unlike"] == []
        assert process["zeros"] > 0
        assert process["masks"]
        assert all(process["masks"])
        assert process["outputs"] < 1e-5
        assert process["batchnorm"][0] == process["batchnorm"][1]
        assert process["after"][0] == process["after"][1]


def test_it_is_spread_like_the_network_that_was_given_which_stays_as_it_was(found):
    for process in found:
        assert process["spread"] == [True, True]
        assert process["unharmed"]


@pytest.mark.parametrize("kind", ["tied", "parallel"])
def test_a_process_gathers_one_segment_at_a_time(two, kind):
    for process in two:
        one = process["parallel"]["blocks"] if kind == "parallel" else process["shards"][kind]
        assert 0 < one["most"] <= 2 * max(BLOCK, OUTSIDE)  # of both networks
        assert one["most"] < one["all"]
    normed = two[0]["shards"]["normed"]
    assert normed["most"] < normed["all"]


def test_a_network_that_fits_is_gathered_as_a_whole(two):
    for process in two:
        assert process["parallel"]["whole"] == []
        assert process["parallel"]["whole spread"]
        assert process["refused"]["fits"] == [False, True]
        assert process["refused"]["room"] == [False, True]


def test_code_that_counts_on_parts_is_refused(two):
    for process in two:
        said = process["parallel"]["local heads"]
        assert said.startswith("ModelError: a model spread by tensor parallelism must give the same outputs")
        assert "Give the model as it was before parallelize_module" in said


def test_what_cannot_be_is_refused_with_the_cure(two):
    for process in two:
        said = process["refused"]
        assert "spread by both, or over two dimensions" in said["both"]
        assert "give the model as it was before" in said["both"]
        assert "got 'model' in FullyShardedDataParallel; give the model as it was before" in said["old"]
        assert said["refine"].startswith("ConfigError: refine must be left out for a model that is spread")
        assert "allocation must be one of ['uniform', 'erk']" in said["allocation"]


def test_a_run_that_was_ended_goes_on_from_its_checkpoint(two):
    for process in two:
        found = process["resumed"]
        assert found["ended"] == "DataError: the callback has had enough"
        assert found["unlike"] == []
        assert found["started"] == 4  # of eight layers
    assert two[0]["resumed"]["gone"]  # by the first process


def test_an_error_of_one_process_ends_all(two):
    assert two[0]["failed"] == "RankError: process 1 of 2: the callback has had enough"
    assert two[1]["failed"] == "DataError: the callback has had enough"


def test_the_report_says_why_nothing_was_fitted_as_a_whole(two):
    for process in two:
        (said,) = process["effort"]
        assert "walked block by block, its weights spread over processes" in said
