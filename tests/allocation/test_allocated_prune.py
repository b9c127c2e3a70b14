"""Allocations in a whole run: exact counts, sense, the report, and every refusal."""

import copy

import pytest
import torch
from torch import nn

import feta
import nets
from feta.allocation import ALLOCATIONS
from feta.engine.settings import on_bar
from feta.sparsity import Sparsity

MEASURED = [name for name, allocation in ALLOCATIONS.items() if allocation.needs_data]
SHARED = [name for name in ALLOCATIONS if name != "uniform"]
X = torch.randn(400, 20, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(80, 2, 6, 6, generator=torch.Generator().manual_seed(2))


def mlp(narrow: int = 6) -> nn.Sequential:
    return nets.mlp(20, 30, narrow, 3)


def convnet() -> nn.Sequential:
    return nets.convnet(96, norm=nn.BatchNorm2d(4))


@pytest.mark.parametrize("method", ["threshold", "alps", "feta"])
@pytest.mark.parametrize("allocation", SHARED)
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 0.9, 0.99])
def test_the_total_is_exact_and_no_layer_is_empty(allocation, method, sparsity):
    report = feta.prune(mlp(), X, sparsity, method, allocation=allocation).report
    assert sum(layer.nonzeros for layer in report.layers) == Sparsity(sparsity).count(20 * 30 + 30 * 6)
    assert min(layer.nonzeros for layer in report.layers) >= 1


@pytest.mark.parametrize("allocation", SHARED)
def test_convolutions_in_the_budget_groups_included(allocation):
    result = feta.prune(convnet(), IMAGES, 0.8, "alps", layers=["conv*", "fc1"], allocation=allocation)
    total = 4 * 2 * 9 + 6 * 2 * 9 + 96 * 5
    assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(0.8).count(total)
    kept = result.report.allocation.kept
    assert list(kept) == ["conv1", "conv2", "fc1"]
    if allocation in MEASURED:
        assert kept["conv1"] > kept["fc1"]  # few weights that every position needs, against many


@pytest.mark.parametrize("allocation", SHARED)
def test_a_larger_budget_takes_from_no_layer(allocation):
    counts = [
        [layer.nonzeros for layer in feta.prune(mlp(), X, s, "threshold", allocation=allocation).report.layers]
        for s in (0.98, 0.95, 0.9, 0.8, 0.6, 0.3)
    ]
    for layer in zip(*counts, strict=True):
        assert list(layer) == sorted(layer)


@pytest.mark.parametrize("allocation", MEASURED)
def test_what_does_not_matter_is_given_up_first(allocation):
    """Outputs of fc1 that no later weight reads: three quarters of its weights change nothing downstream."""
    model = mlp()
    with torch.no_grad():
        model.fc1.weight[8:] = 0
        model.fc2.weight[:, 8:] = 0
    kept = feta.prune(model, X, 0.7, "threshold", allocation=allocation).report
    counts = {layer.name: layer.nonzeros for layer in kept.layers}
    assert counts["fc1"] <= 8 * 20 + 30  # never much more than the weights that do something
    assert counts["fc2"] >= 40  # of the 48 that do


def test_outputs_move_less_than_under_uniform_shares():
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(2000, 5, generator=generator) @ torch.randn(5, 20, generator=generator)
    model = mlp(narrow=8)
    uniform, shared = (
        feta.prune(model, data, 0.8, "alps", allocation=allocation).model for allocation in ("uniform", "sensitivity")
    )
    errors = [(pruned(data) - model(data)).square().mean().item() for pruned in (uniform, shared)]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize("allocation", MEASURED)
def test_the_model_is_as_before_and_the_answer_repeats(allocation):
    model = convnet()
    model.train()
    before = copy.deepcopy(model.state_dict())
    first, second = (
        feta.prune(model, IMAGES, 0.8, "feta", layers=["conv*", "fc1"], allocation=allocation) for _ in range(2)
    )
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(first.masks[name], second.masks[name]) for name in first.masks)
    assert torch.equal(first.model.norm.running_mean, second.model.norm.running_mean)
    assert torch.equal(first.model.out.weight, model.out.weight)  # what is not pruned is not touched


def test_the_report():
    report = feta.prune(mlp(), X, 0.9, "threshold", allocation="sensitivity").report
    assert report.allocation.name == "sensitivity"
    assert report.allocation.seconds > 0
    shares = {layer.name: pytest.approx(1 - layer.sparsity) for layer in report.layers}
    assert report.allocation.kept == shares
    assert report.to_dict()["allocation"]["name"] == "sensitivity"
    given = feta.prune(mlp(), X, {"fc1": 0.5}, "threshold").report.allocation
    assert (given.name, given.kept) == ("per-layer", {"fc1": 0.5})


@pytest.mark.parametrize("allocation", MEASURED)
def test_each_layer_that_is_measured_is_told_of(allocation):
    events = []
    feta.prune(mlp(), X, 0.9, "threshold", allocation=allocation, callback=events.append)
    told = [(event.kind, event.layer, event.index, event.total) for event in events if event.phase == "measure"]
    assert told == [("step", "fc1", 0, 2), ("step", "fc2", 1, 2)]
    assert [event.kind for event in events[2:]] == ["start", "done"] * 2
    assert on_bar(events[1])["note"] == "measuring how much each layer can spare: 2 of 2, fc2"
    assert on_bar(events[1])["completed"] == 0


@pytest.mark.parametrize("kind", [RuntimeError, feta.DataError])
def test_a_callback_can_stop_the_measuring(kind):
    def stop(event):
        if event.phase == "measure":
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        feta.prune(mlp(), X, 0.9, effort="fast", callback=stop)


def test_one_shot_data_is_read_once():
    data = (iter(X.split(50)), list(X.split(50)))
    once, often = (feta.prune(mlp(), form, 0.9, "alps", allocation="bound").report for form in data)
    assert once.allocation.kept == often.allocation.kept


@pytest.mark.parametrize("allocation", SHARED)
def test_what_cannot_be_allocated(allocation):
    with pytest.raises(feta.ConfigError, match="allocation must be uniform where sparsity is per layer"):
        feta.prune(mlp(), X, {"fc1": 0.5}, "threshold", allocation=allocation)
    if allocation in MEASURED:
        with pytest.raises(feta.ConfigError, match=f"data must be given for allocation '{allocation}', got None"):
            feta.prune(mlp(), None, 0.9, "threshold", allocation=allocation)
        with pytest.raises(feta.FetaError, match="finite"):
            feta.prune(mlp(), X * float("inf"), 0.9, "threshold", allocation=allocation)


def test_erk_needs_no_data():
    report = feta.prune(mlp(), None, 0.8, "threshold", allocation="erk").report
    assert [layer.nonzeros for layer in report.layers] == [91, 65]  # 50 : 36
