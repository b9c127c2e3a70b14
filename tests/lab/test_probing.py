"""Planning on a small network: what is tried, what it costs, and that the clock is kept."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from feta.errors import ConfigError, ModelError
from feta.lab import probing
from feta.lab.planning import Measured
from feta.lab.probing import CAP, SHARE, Late, Watch, plan
from feta.lab.store import Network, NetworkInfo
from feta.lab.training import Training, train
from feta.lab.trials import FIXED, Trials
from feta.pruners import METHODS


@pytest.fixture(scope="module")
def network(tiny_data):
    return train("30FC-20FC-3SM", tiny_data, Training(max_epochs=3))


@pytest.fixture
def trials(network, tiny_data):
    return Trials(network, tiny_data, 0.8, look=1.0)


def no_brake(event: Any) -> None:
    pass


# Trials


def test_every_method_has_its_fixed_cost():
    assert set(FIXED) == set(METHODS)
    assert next(iter(FIXED)) == "threshold"


def test_a_trial_adds_points_of_every_stage(trials):
    first = trials.add(Measured("wanda", (), ()), 100, ("refine", "retrain"), lambda: 60.0, no_brake)
    assert [rows for rows, _ in first.prune] == [rows for rows, _ in first.prune_seconds] == [100]
    assert len(first.refine) == 1  # a quarter of the rows makes less than a step
    assert [steps for steps, _ in first.retrain] == pytest.approx([100 / 32 / 4, 100 / 32])
    second = trials.add(first, 300, ("refine",), lambda: 60.0, no_brake)
    assert [rows for rows, _ in second.prune] == [100, 300]
    assert len(second.refine) == 2
    assert second.retrain == first.retrain
    assert min(second.refine_rate, second.retrain_rate) > 0
    scores = [score for points in (second.prune, second.refine, second.retrain) for _, score in points]
    assert all(0 <= score <= 100 for score in scores)


def test_a_stage_that_is_stopped_adds_nothing(trials):
    found = trials.add(Measured("wanda", (), ()), 300, ("refine", "retrain"), lambda: 1e-9, no_brake)
    assert (found.refine, found.retrain) == ((), ())


def test_thresholding_has_seen_all_rows(trials, tiny_data):
    found = trials.add(Measured("threshold", (), ()), 100, (), lambda: 60.0, no_brake)
    assert found.prune[0][0] == len(tiny_data.train)


def test_samples_hold_the_smaller_ones(trials):
    small = trials.sample(50)[0]
    assert torch.equal(trials.sample(120)[0][:50], small)


def test_the_network_is_left_alone(network, trials):
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    trials.add(Measured("feta", (), ()), 100, ("refine", "retrain"), lambda: 60.0, no_brake)
    assert all(torch.equal(before[name], value) for name, value in network.model.state_dict().items())


def test_a_guess_grows_with_the_width(tiny_data, trials):
    from feta.lab.networks import build

    info = NetworkInfo("90FC-90FC-3SM", (1, 6, 6), "tiny", tiny_data.normalisation)
    wide = Trials(Network(build("90FC-90FC-3SM", (1, 6, 6), seed=0), info), tiny_data, 0.8, look=1.0)
    assert wide.fixed_seconds("alps") > trials.fixed_seconds("alps") > trials.fixed_seconds("wanda") == 0


# Planning


def test_a_generous_budget_tries_everything(network, tiny_data):
    told: list[str] = []
    found = plan(network, tiny_data, 600.0, sparsity=0.8, methods=("wanda", "alps"), tell=told.append)
    assert {line.split(",")[0] for line in told} == {"threshold", "wanda", "alps"}
    offered = {(one.method, one.stage) for one in found.advice.candidates}
    assert offered == {(m, s) for m in ("threshold", "wanda", "alps") for s in ("prune", "refine", "retrain")}
    assert found.skipped == {}
    assert found.spent > 0
    assert found.advice.choice.fits
    assert found.advice.choice.accuracy.value == pytest.approx(
        max(one.accuracy.value for one in found.advice.candidates), abs=0.11
    )


def test_nothing_is_begun_beyond_the_share(network, tiny_data, monkeypatch):
    now, begun = [0.0], []

    def clock(device: Any) -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr(probing, "clock", clock)
    found = plan(network, tiny_data, 60.0, sparsity=0.8, tell=lambda text: begun.append(now[0]))
    assert len(begun) > 2
    assert max(begun) <= SHARE * 60 + 0.3  # some looks at the watch
    assert found.skipped


def test_no_time_leaves_thresholding(network, tiny_data):
    found = plan(network, tiny_data, 1e-3, methods=("feta",))
    assert [one.method for one in found.advice.candidates] == ["threshold"]
    assert not found.advice.choice.fits  # planning alone has taken more
    assert set(found.skipped) == {"feta"}


def test_a_method_that_refuses_is_skipped_with_its_reason(network, tiny_data, monkeypatch):
    @dataclass(frozen=True)
    class Refuses:
        name: ClassVar[str] = "lobs"
        passes: ClassVar[str] = "few"

        def prune(self, problem: Any, target: Any) -> Any:
            raise ConfigError("lobs must be asked nicely, got no please")

    monkeypatch.setitem(METHODS, "lobs", Refuses)
    found = plan(network, tiny_data, 600.0, methods=("lobs",))
    assert "asked nicely" in found.skipped["lobs"]
    assert {one.method for one in found.advice.candidates} == {"threshold"}


def test_a_stage_that_diverges_is_dropped_with_its_reason(network, tiny_data):
    """A network that computes the same with weights of wild sizes: a step of retraining throws it off."""
    model = copy.deepcopy(network.model)
    with torch.no_grad():
        model.fc1.weight *= 1e15
        model.fc1.bias *= 1e15
        model.fc2.weight *= 1e-15
    found = plan(network.with_model(model), tiny_data, 600.0, sparsity=0.8, methods=("wanda",))
    assert "must keep a finite loss" in found.skipped["threshold, retrain"]
    offered = {(one.method, one.stage) for one in found.advice.candidates}
    assert ("threshold", "prune") in offered
    assert not {f"{method}, {stage}" for method, stage in offered} & set(found.skipped)


def test_what_is_known_of_a_stage_goes_when_it_diverges(trials, monkeypatch):
    def diverges(*args: Any, **kwargs: Any) -> Any:
        raise ModelError("refinement must keep a finite loss, got nan; lower learning_rate")

    known = Measured("wanda", (), (), refine=((1.0, 50.0),))
    monkeypatch.setattr("feta.lab.trials.refine", diverges)
    found = trials.add(known, 100, ("refine", "retrain"), lambda: 60.0, no_brake)
    assert (found.refine, len(found.retrain)) == ((), 2)
    assert trials.failed == {
        "wanda, refine": "refinement must keep a finite loss, got nan; lower learning_rate"
    }


def test_a_network_that_thresholding_cannot_prune_is_an_error(network, tiny_data, monkeypatch):
    def refuses(*args: Any, **kwargs: Any) -> Any:
        raise ModelError("layer 'fc1' must have finite weights, got nan")

    monkeypatch.setattr("feta.lab.trials.prune", refuses)
    with pytest.raises(ModelError, match="layer 'fc1' must have finite weights"):
        plan(network, tiny_data, 600.0, methods=("wanda",))


def test_a_trial_that_takes_too_long_is_broken_off(network, tiny_data, monkeypatch):
    def late(self: Watch, event: Any) -> None:
        if self.brake < math.inf:
            raise Late

    monkeypatch.setattr(Watch, "check", late)
    found = plan(network, tiny_data, 600.0, methods=("wanda",))
    assert "takes more than the" in found.skipped["wanda"]


def test_the_watch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(probing, "clock", lambda device: now[0])
    watch = Watch(60.0, "cpu")
    watch.brake = 5.0
    now[0] = 104.0
    watch.check(None)
    assert (watch.elapsed(), watch.allowance(), watch.rest()) == (4.0, SHARE * 60 - 4, CAP * 60 - 4)
    now[0] = 106.0
    with pytest.raises(Late):
        watch.check(None)
    now[0] = 200.0
    assert watch.allowance() < 0 < watch.rest()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0.0}, "budget must be > 0 seconds, got 0.0"),
        ({"budget": math.inf}, "budget must be > 0 seconds, got inf"),
        ({"sparsity": 1.0}, "sparsity must be"),
        ({"methods": ("magic",)}, "unknown method 'magic'"),
    ],
)
def test_bad_input(network, tiny_data, given, message):
    with pytest.raises(ConfigError, match=message):
        plan(network, tiny_data, **{"budget": 1.0, **given})
