"""A whole job: prune, judge, summarise; the summary is JSON and the network says how it was made."""

from __future__ import annotations

import json

import pytest
import torch

from feta.errors import ConfigError
from feta_lab.jobs import prune_network
from feta_lab.judge import judge
from feta_lab.training import Training, train


@pytest.fixture(scope="module")
def network(tiny_data):
    return train("12FC-10FC-3SM", tiny_data, Training(max_epochs=3))


def test_summary_and_network_agree(network, tiny_data):
    before = {name: t.clone() for name, t in network.model.state_dict().items()}
    pruned, summary = prune_network(network, tiny_data, 0.75, "threshold", seed=5, compensate=True)
    assert json.loads(json.dumps(summary)) == {
        **summary,
        "layers": [{**layer, "shape": list(layer["shape"])} for layer in summary["layers"]],
    }
    assert (summary["method"], summary["target_sparsity"], summary["seed"]) == ("threshold", 0.75, 5)
    assert [layer["nonzeros"] for layer in summary["layers"]] == [108, 30]
    assert summary["accuracy"]["dense"] == judge(network.model, tiny_data)
    assert summary["accuracy"]["pruned"] == judge(pruned.model, tiny_data) == pruned.info.accuracy
    assert summary["compensated"] == {"softmax": "ok"}
    assert pruned.info.pruning["layers"] == ["fc1", "fc2"]
    assert {key: pruned.info.pruning[key] for key in ("method", "target_sparsity", "seed", "options")} == {
        key: summary[key] for key in ("method", "target_sparsity", "seed", "options")
    }
    assert all(torch.equal(network.model.state_dict()[name], t) for name, t in before.items())
    assert network.info.pruning is None


def test_without_data_nothing_is_judged(network):
    pruned, summary = prune_network(network, None, {"fc1": 0.5}, "threshold")
    assert summary["accuracy"] is None
    assert pruned.info.accuracy == {}
    assert [layer["name"] for layer in summary["layers"]] == ["fc1"]


def test_options_of_the_engine_are_passed_on(network, tiny_data):
    with pytest.raises(ConfigError, match="unknown allocation 'sideways'"):
        prune_network(network, tiny_data, 0.5, "threshold", allocation="sideways")
    _, summary = prune_network(network, tiny_data, 0.5, "threshold", layers=["softmax"])
    assert [layer["name"] for layer in summary["layers"]] == ["softmax"]


def test_refinement_is_a_stage_of_its_own(network, tiny_data):
    pruned, summary = prune_network(network, tiny_data, 0.75, "threshold", refine=True)
    assert json.loads(json.dumps(summary["refinement"])) == summary["refinement"]
    assert summary["refinement"]["loss_after"] < summary["refinement"]["loss_before"]
    assert pruned.info.pruning["refinement"] == {"passes": 3.0, "loss": "kl"}
    assert prune_network(network, tiny_data, 0.75, "threshold")[1]["refinement"] is None
