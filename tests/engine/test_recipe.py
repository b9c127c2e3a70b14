"""One call: its stages, which of them is kept, exact counts, time, and the caller's model as it was."""

import copy
import itertools
import json
import time
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import feta
import nets
from feta.calibration.inputs import places_of
from feta.engine import compare, recipe
from feta.engine.finish import PruneWarning
from feta.errors import ConfigError, ModelError
from feta.layers import weight_of
from feta.pages.words import significant
from feta.sparsity import Sparsity
from feta.tuning.bench import Bench
from feta.tuning.fitting import Fit
from feta.tuning.refine import fitted
from odd_networks import cases

X = torch.randn(240, 12, generator=torch.Generator().manual_seed(1))
LAYERS, FITTED, MOVING = "layer by layer", "survivors fitted", "moving support"
LONGER = ["moving support, longer", "survivors fitted, longer"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Hundreds of steps instead of thousands."""
    monkeypatch.setattr(recipe, "STEPS", 160)


def network(scale: float = 3.0) -> nn.Sequential:
    """With outputs that look like scores of classes: one stands out, and their sum stays."""
    model = nets.mlp(12, 20, 16, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
        for parameter in model.out.parameters():
            parameter.sub_(parameter.mean(0))
    return model.eval()


@torch.no_grad()
def distance(model: nn.Module, original: nn.Module, x: Tensor) -> float:
    """Half the sum of the differences of probabilities: what many rows are judged by."""
    p, q = (m(x).double().softmax(1) for m in (original, model))
    return float((p - q).abs().sum(1).mean() / 2)


def check(result: feta.PruneResult) -> None:
    """Masks, the model's zeros and the report agree, and one stage is kept."""
    for layer in result.report.layers:
        weight = result.model.get_submodule(layer.name).weight
        assert torch.equal(result.masks[layer.name], weight != 0)
        assert layer.nonzeros == int(weight.count_nonzero())
        assert layer.sparsity == pytest.approx(1 - layer.nonzeros / weight.numel())
    kept = sum(layer.nonzeros for layer in result.report.layers)
    size = sum(mask.numel() for mask in result.masks.values())
    assert result.report.sparsity == pytest.approx(1 - kept / size)
    assert [stage.kept for stage in result.report.stages].count(True) == 1


def kept(result: feta.PruneResult) -> str:
    return next(stage.name for stage in result.report.stages if stage.kept)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# What one call does


def test_one_call(monkeypatch):
    monkeypatch.setattr(recipe, "STEPS", 1600)  # with a tenth of it the fit is no better than the layers on new rows
    model, events = network(), []
    result = feta.prune(model, X, 0.8, callback=events.append)
    report = result.report
    check(result)
    assert (report.effort, report.method, report.allocation.name) == ("default", "feta", "sensitivity")
    assert report.compensated
    assert [stage.name for stage in report.stages] == [LAYERS, FITTED, MOVING]
    best = min(report.stages, key=lambda stage: stage.distance)
    assert best.kept
    assert report.refinement.loss_after == best.distance
    fresh = torch.randn(500, 12, generator=torch.Generator().manual_seed(9))
    fast = feta.prune(model, X, 0.8, effort="fast")
    assert fast.report.stages[0].distance == report.stages[0].distance
    assert distance(result.model, model, fresh) < distance(fast.model, model, fresh)
    phases = [event.phase for event in events]
    assert phases.count("refine") > 3
    assert {event.layer for event in events if event.phase == "refine"} == {"all layers"}


def test_stages_are_in_the_json_and_in_the_table():
    report = feta.prune(network(), X, 0.8).report
    back = json.loads(report.to_json())
    assert back["effort"] == "default"
    assert [stage["name"] for stage in back["stages"]] == [LAYERS, FITTED, MOVING]
    for stage, said in zip(report.stages, back["stages"], strict=True):
        assert (said["distance"], said["kept"], said["seconds"]) == (stage.distance, stage.kept, stage.seconds)
        line = next(line for line in repr(report).splitlines() if f" {stage.name}," in line)
        assert line.startswith("→") == stage.kept
        assert f"{significant(stage.distance)} from the original" in line
    assert report.stages[1].message.startswith("40 steps, rate ")


def test_fast_is_layer_by_layer_with_allocation_and_compensation():
    model = network()
    fast = feta.prune(model, X, 0.8, effort="fast")
    by_name = feta.prune(model, X, 0.8, "feta", allocation="sensitivity", compensate=True)
    check(fast)
    assert same(fast.model, by_name.model)
    assert [stage.name for stage in fast.report.stages] == [LAYERS]
    assert fast.report.refinement is None
    assert (by_name.report.effort, by_name.report.stages) == (None, ())


def test_the_first_stage_is_judged_on_rows_that_nothing_fitted():
    """So many that no mixtures are judged beside them."""
    model, data = network(), torch.randn(5200, 12, generator=torch.Generator().manual_seed(3))
    result = feta.prune(model, data, 0.8, effort="fast")
    held = data[places_of(5200) % 10 == 0]
    assert result.report.stages[0].distance == pytest.approx(distance(result.model, model, held), rel=1e-4)


def told_distances(monkeypatch, distances: list[float]) -> list[tuple[Any, ...]]:
    """Let the fits' distances be these thousandths; what each fit was given is noted."""
    told, seen = iter(distances), []

    def told_so(*given: Any) -> Any:
        seen.append(given)
        done = fitted(*given[:3], replace(given[3], steps=3, learning_rate=1e-4), *given[4:])
        return replace(done, report=replace(done.report, steps=given[3].steps, loss_after=next(told) * 1e-3))

    monkeypatch.setattr(recipe, "fitted", told_so)
    monkeypatch.setattr(recipe.Recipe, "_strayed", lambda recipe, model: "")  # which the networks have
    return seen


def test_best_goes_on_as_long_as_it_helps(monkeypatch):
    """Each round takes twice the steps; the first that brings less than two hundredths is the last."""
    seen = told_distances(monkeypatch, [0.5, 0.4, 0.35, 0.3, 0.299, 0.298, 0.1])
    report = feta.prune(network(), X, 0.8, effort="best").report
    assert [stage.name for stage in report.stages] == [LAYERS, FITTED, MOVING, *LONGER, *LONGER]
    assert [given[3].steps for given in seen] == [40, 160, 320, 320, 640, 640]
    assert [given[3].support for given in seen] == ["fixed", "free", *["moving", "fixed"] * 2]
    for before, after in itertools.pairwise(seen[2:]):  # each goes on from the best, which is the last
        assert before[4] is not after[4]
    assert [stage.kept for stage in report.stages] == [False] * 6 + [True]
    assert report.effort == "best"


def test_longer_fits_of_survivors_start_from_the_best_network(monkeypatch):
    seen = told_distances(monkeypatch, [0.4, 0.5, 0.3, 0.299])
    result = feta.prune(network(), X, 0.8, effort="best")
    assert [stage.name for stage in result.report.stages][3:] == [LONGER[1]] * 2  # a support that moved did not win
    assert seen[0][0] is seen[1][0]
    assert not any(given[0] is seen[0][0] for given in seen[2:])
    check(result)


def test_of_deep_networks_the_survivors_alone_are_fitted(monkeypatch):
    monkeypatch.setattr(recipe, "DEEP", 2)
    report = feta.prune(network(), X, 0.8).report
    assert [stage.name for stage in report.stages] == [LAYERS, FITTED]
    assert report.stages[1].message.startswith("320 steps, rate ")


@pytest.mark.parametrize(("pace", "expected"), [(0.0, (400, 1600)), (1.0, (100, 100)), (0.05, (200, 800))])
def test_steps_are_halved_until_they_fit_into_the_time(monkeypatch, pace, expected):
    """A quarter of a minute for the survivors, three for the moving support; 100 steps at the least."""
    monkeypatch.setattr(recipe, "STEPS", 1600)
    monkeypatch.setattr(recipe, "TIMES", 0)
    best_rate = Bench.best_rate

    def slow(bench: Bench, *given: Any) -> float:
        rate = best_rate(bench, *given)
        bench.pace = pace
        return rate

    monkeypatch.setattr(Bench, "best_rate", slow)
    _, *fits = feta.prune(network(), X, 0.8).report.stages
    assert tuple(int(fit.message.split()[0]) for fit in fits) == expected
    told = [f" of {asked} (in some {limit} s), " for asked, limit in ((400, 15), (1600, 45))]
    for fit, said, steps, asked in zip(fits, told, expected, (400, 1600), strict=True):
        assert (said in fit.message) == (steps < asked)


def test_fits_end_when_even_the_fewest_steps_take_too_long(monkeypatch):
    """Tries of rates take half of the time at the most, steps twice as long as they were to."""
    monkeypatch.setattr(recipe, "STEPS", 1600)
    monkeypatch.setattr(recipe, "TIMES", 0)
    monkeypatch.setattr(recipe, "FLOOR", 2.0)
    update = Fit.update

    def slow(fit: Fit, x: Tensor, y: Tensor) -> Tensor:
        time.sleep(0.02)
        return update(fit, x, y)

    monkeypatch.setattr(Fit, "update", slow)
    _, *fits = feta.prune(network(), X, 0.8).report.stages
    for fit, asked in zip(fits, (400, 1600), strict=True):
        assert int(fit.message.split()[0]) < 100 < asked


@pytest.mark.parametrize("guessed", [True, False])
def test_values_that_were_taken_for_scores_are_not_spoilt(monkeypatch, guessed):
    """A fit to the scores of a softmax may leave the values of a regression anywhere."""
    match_for = compare.match_for
    monkeypatch.setattr(compare, "match_for", lambda *given: replace(match_for(*given), guessed=guessed))

    def spoilt(*given: Any) -> Any:
        done = fitted(*given[:3], replace(given[3], steps=3, learning_rate=1e-4), *given[4:])
        with torch.no_grad():
            for parameter in done.model.out.parameters():
                parameter.mul_(4)
        return replace(done, report=replace(done.report, loss_after=1e-9))

    monkeypatch.setattr(recipe, "fitted", spoilt)
    result = feta.prune(network(), X, 0.5)
    assert result.report.stages[0].kept == guessed
    assert ("fit their values by settings=feta.Settings(loss='mse')" in repr(result)) == guessed
    assert (result.report.held.error < 0.5) == guessed


# What is kept


def judged(monkeypatch, *factors: float) -> None:
    """Let the fits' distances be those of the layers times these."""
    share = iter(factors)
    first = {}
    distance_of = recipe.distance_of

    def noted(*given: Any) -> tuple[float, str]:
        first["layers"], measure = distance_of(*given)
        return first["layers"], measure

    def told(*given: Any) -> Any:
        done = fitted(*given)
        return replace(done, report=replace(done.report, loss_after=first["layers"] * next(share)))

    monkeypatch.setattr(recipe, "distance_of", noted)
    monkeypatch.setattr(recipe, "fitted", told)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [((1.1, 1.2), LAYERS), ((1.0, 1.0), LAYERS), ((0.5, 0.6), FITTED), ((0.6, 0.5), MOVING), ((1.5, 0.9), MOVING)],
)
def test_the_stage_with_the_lowest_distance_is_kept(monkeypatch, factors, expected):
    model = network()
    layered = feta.prune(model, X, 0.8, effort="fast")
    judged(monkeypatch, *factors)
    result = feta.prune(model, X, 0.8)
    check(result)
    assert kept(result) == expected
    assert same(result.model, layered.model) == (expected == LAYERS)
    assert (result.report.refinement is None) == (expected == LAYERS)
    first = (layer.relative_error for layer in result.report.layers)
    assert all((error is not None) == (expected == LAYERS) for error in first)


def test_layers_that_need_a_look_are_not_called_so_after_a_fit_that_helped():
    """Rows are few for 200 inputs; the network's own distance is what counts then."""
    model, data = nets.mlp(200, 20, 4).eval(), torch.randn(60, 200, generator=torch.Generator().manual_seed(1))
    fast = feta.prune(model, data, 0.8, effort="fast").report
    assert fast.layers[0].status != "ok"
    whole = feta.prune(model, data, 0.8).report
    assert whole.layers[0].status == "ok"
    assert whole.layers[0].message == f"before the network was fitted as a whole: {fast.layers[0].message}"
    assert whole.refinement is not None


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("there is no way back\nat all")


class Odd(nn.Module):
    """A network whose outputs are passed through something of one's own."""

    def __init__(self, through: Any) -> None:
        super().__init__()
        self.net, self.through = network(), through

    def forward(self, x: Tensor) -> Tensor:
        return self.through(self.net(x), x)


def no_way_back(y: Tensor, x: Tensor) -> Tensor:
    return NoBackward.apply(y)


def known_rows_alone(y: Tensor, x: Tensor) -> Tensor:
    if bool((x[:, None] == X).all(-1).any(-1).all()):
        return y
    raise ValueError("never seen such a row")


def detached(y: Tensor, x: Tensor) -> Tensor:
    return y.detach()


def layers_alone(result: feta.PruneResult, expected: feta.PruneResult) -> None:
    check(result)
    assert same(result.model, expected.model)
    assert result.report.refinement is None
    assert kept(result) == LAYERS
    result.report.to_json()


@pytest.mark.filterwarnings("ignore:outputs of layers count alike")
@pytest.mark.parametrize(
    ("through", "message"),
    [(no_way_back, "RuntimeError: there is no way back"), (detached, "its outputs have no gradient")],
)
def test_a_model_without_a_way_back_keeps_its_layers(through, message):
    model = Odd(through).eval()
    result = feta.prune(model, X, 0.8)
    layers_alone(result, feta.prune(model, X, 0.8, effort="fast"))
    for stage in result.report.stages[1:]:
        assert (stage.distance, stage.kept) == (None, False)
        assert stage.message.startswith(message)
        assert stage.seconds > 0


def test_a_model_that_takes_no_mixtures_keeps_its_layers():
    model = Odd(known_rows_alone).eval()
    result = feta.prune(model, X, 0.8)
    layers_alone(result, feta.prune(model, X, 0.8, effort="fast"))
    (stage,) = result.report.stages
    assert (stage.distance, stage.message) == (None, "ValueError: never seen such a row")


@pytest.mark.parametrize("error", [ModelError("it ran away"), RuntimeError("it ran away"), KeyError("it ran away")])
def test_a_fit_that_fails_keeps_the_layers(monkeypatch, error):
    def fails(*given: Any) -> Any:
        raise error

    model = network()
    expected = feta.prune(model, X, 0.8, effort="fast")
    monkeypatch.setattr(recipe, "fitted", fails)
    result = feta.prune(model, X, 0.8)
    layers_alone(result, expected)
    assert ["it ran away" in stage.message for stage in result.report.stages] == [False, True, True]
    with pytest.raises(type(error), match="it ran away"):  # a fit that is asked for by name must not fail in silence
        feta.prune(model, X, 0.8, "feta", refine=True)


def test_one_fit_that_fails_does_not_stop_the_next(monkeypatch):
    calls = []

    def fails_once(*given: Any) -> Any:
        calls.append(given[3])
        if len(calls) == 1:
            raise ModelError("it ran away")
        return fitted(*given)

    monkeypatch.setattr(recipe, "fitted", fails_once)
    result = feta.prune(network(), X, 0.8)
    check(result)
    assert [call.support for call in calls] == ["fixed", "free"]
    assert kept(result) == MOVING


@pytest.mark.parametrize(
    ("how", "support"),
    [
        ({}, "free"),
        ({"allocation": "uniform"}, "moving"),
        ({"sparsity": {"*": 0.8}}, "moving"),
        ({"pattern": "1:4", "sparsity": None}, "moving"),
    ],
)
def test_a_budget_that_was_asked_for_by_layer_is_kept_by_layer(how, support, monkeypatch):
    calls = []

    def noted(*given: Any) -> Any:
        calls.append(given[3])
        return fitted(*given)

    monkeypatch.setattr(recipe, "fitted", noted)
    result = feta.prune(network(), X, **({"sparsity": 0.8, "effort": "default"} | how))
    assert [call.support for call in calls] == ["fixed", support]
    numels, left = zip(*((mask.numel(), int(mask.sum())) for mask in result.masks.values()), strict=True)
    share = 0.25 if "pattern" in how else 0.2
    assert sum(left) == pytest.approx(share * sum(numels), abs=len(left))
    if support == "moving":
        assert all(k == pytest.approx(share * n, abs=1) for n, k in zip(numels, left, strict=True))


@pytest.mark.parametrize("kind", [RuntimeError, feta.ModelError, KeyboardInterrupt])
def test_a_callback_can_stop_a_fit(kind):
    def stop(event: Any) -> None:
        if event.phase == "refine":
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        feta.prune(network(), X, 0.8, callback=stop)


def test_too_little_memory_is_not_taken_for_a_fit_that_does_not_help(monkeypatch):
    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(recipe, "fitted", full)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        feta.prune(network(), X, 0.8)


def test_a_distance_that_is_no_number_is_none():
    """Mixtures make it so: the outputs on them are not finite."""
    model = Odd(lambda y, x: y if bool((x[:, None] == X).all(-1).any(-1).all()) else y * torch.inf).eval()
    result = feta.prune(model, X, 0.8)
    layers_alone(result, feta.prune(model, X, 0.8, effort="fast"))
    (stage,) = result.report.stages
    assert (stage.distance, stage.message) == (None, "outputs must be finite to be judged by, got a distance of nan")


# Time


def test_without_time_the_layers_are_finished_and_nothing_follows(monkeypatch):
    model, data = network(), torch.randn(2000, 12, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(recipe, "STEPS", 10**6)  # would take minutes
    expected = feta.prune(model, data, 0.8, effort="fast")
    for effort in ("default", "best"):
        started = time.perf_counter()
        result = feta.prune(model, data, 0.8, effort=effort, seconds=1e-6)
        waited = time.perf_counter() - started
        layers_alone(result, expected)
        assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(0.8).count(12 * 20 + 20 * 16)
        first, *others = result.report.stages
        assert first.kept
        assert {stage.message for stage in others} == {"no time was left"}
        assert result.report.seconds == pytest.approx(sum(result.report.parts.values()))
        assert 0.8 * waited <= result.report.seconds <= waited


def test_a_time_budget_cuts_what_follows(monkeypatch):
    monkeypatch.setattr(recipe, "STEPS", 10**6)
    model = network()
    result = feta.prune(model, X, 0.8, seconds=1.5)
    check(result)
    assert result.report.effort == "default"
    assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(0.8).count(12 * 20 + 20 * 16)
    assert result.report.seconds == pytest.approx(sum(result.report.parts.values()))
    assert sum(stage.seconds for stage in result.report.stages) <= result.report.seconds
    assert FITTED in [stage.name for stage in result.report.stages]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"effort": "fats"}, "unknown effort 'fats'; did you mean 'fast'"),
        ({"effort": "bst"}, "unknown effort 'bst'; did you mean 'best'"),
        ({"effort": "best", "refine": True}, "refine must be left to the effort, got effort='best' and refine"),
        ({"effort": "fast", "refine": feta.Refinement()}, "refine must be left to the effort"),
        ({"method": "wanda", "seconds": 3}, "seconds must go with an effort, got 3 for a method alone"),
        ({"refine": True, "seconds": 3}, "seconds must go with an effort"),
        ({"seconds": 0}, "seconds must be > 0 and finite, got 0"),
        ({"seconds": float("nan")}, "seconds must be > 0 and finite, got nan"),
        ({"seconds": "long"}, "seconds must be a number, got 'long'"),
        ({"data": None}, "data must be given for method 'feta', got None"),
        ({"data": None, "method": "threshold", "allocation": "sensitivity"}, "data must be given for allocation"),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        feta.prune(network(), **{"data": X, **arguments})


# Counts


@settings(max_examples=12, phases=[Phase.generate])
@given(st.floats(0.05, 0.97), st.integers(3, 17), st.integers(3, 13), st.sampled_from(["fast", "default"]))
def test_the_total_is_exact_at_odd_sizes(share, first, second, effort):
    torch.manual_seed(0)
    model, before = nets.mlp(7, first, second, 3).eval(), recipe.STEPS
    try:
        recipe.STEPS = 20
        result = feta.prune(model, X[:, :7], share, effort=effort)
    finally:
        recipe.STEPS = before
    check(result)
    size = 7 * first + first * second
    assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(share).count(size)


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:outputs of layers count alike")
@settings(max_examples=8, phases=[Phase.generate])
@given(cases(), st.sampled_from([0.3, 0.6, 0.9]))
def test_one_call_on_odd_networks(case, share):
    """Of a network that works in place there is no way back; all the same counts, masks and files are right."""
    before, steps = copy.deepcopy(case.model.state_dict()), recipe.STEPS
    try:
        recipe.STEPS = 20
        result = feta.prune(case.model, case.data, share, layers="*")
    finally:
        recipe.STEPS = steps
    assert all(torch.equal(tensor, before[name]) for name, tensor in case.model.state_dict().items())
    for name, mask in result.masks.items():
        assert torch.equal(weight_of(result.model, name) != 0, mask)
    size = sum(mask.numel() for mask in result.masks.values())
    assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(share).count(size)
    assert [stage.kept for stage in result.report.stages].count(True) == 1
    result.report.to_json()


def test_a_sparsity_per_layer_is_kept_in_every_stage():
    result = feta.prune(network(), X, {"fc1": 0.9, "fc2": 0.35})
    check(result)
    assert [layer.nonzeros for layer in result.report.layers] == [24, 208]
    assert result.report.allocation.name == "per-layer"
    assert kept(result) != LAYERS


def test_no_zeros_are_asked_for():
    model = network()
    result = feta.prune(model, X, 0.0)
    check(result)
    assert all(mask.all() for mask in result.masks.values())
    torch.testing.assert_close(result.model(X), model(X), rtol=1e-3, atol=1e-3)


def test_every_method_takes_an_effort():
    model = network()
    for method in ("threshold", "alps", feta.pruners.Wanda()):
        result = feta.prune(model, X, 0.8, method, effort="default")
        check(result)
        assert result.report.method != "feta"
        assert [stage.name for stage in result.report.stages] == [LAYERS, FITTED, MOVING]


def test_convolutions_with_batch_norm():
    torch.manual_seed(0)
    model = nets.convnet(24, norm=nn.BatchNorm2d(4)).eval()
    images = torch.randn(60, 2, 4, 4, generator=torch.Generator().manual_seed(2))
    result = feta.prune(model, images, 0.7, layers=["conv*", "fc1"])
    check(result)
    assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(0.7).count(72 + 108 + 120)


def test_an_expert_that_no_sample_reaches():
    """Its sensitivity cannot be measured: all layers get one share, and its own report says why."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.stem, self.out = nn.Linear(12, 8), nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.stem(x))
            picked, y = (h.sum(1) < 0).long(), torch.zeros_like(h)
            for index, expert in enumerate(self.experts):
                rows = (picked == index).nonzero()[:, 0]
                y = y.index_add(0, rows, torch.relu(expert(h[rows])))
            return self.out(y)

    model = Two().eval()
    result = feta.prune(model, X, 0.75)
    assert {layer.name: layer.nonzeros for layer in result.report.layers} == {
        "stem": 24,
        "experts.0": 16,
        "experts.1": 16,
    }
    assert result.report.allocation.name == "uniform"
    check(result)


# Few samples, none, and every form of them


@pytest.mark.parametrize("count", [3, 10])
def test_few_samples_are_too_few_to_judge_by(count):
    model = network()
    result = feta.prune(model, X[:count], 0.5)
    layers_alone(result, feta.prune(model, X[:count], 0.5, effort="fast"))
    (stage,) = result.report.stages
    said = "too few samples to fit and judge a network by; give 200 or more"
    assert (stage.distance, stage.message) == (None, said)
    assert stage.message in repr(result)
    with pytest.raises(ConfigError, match="data must hold 4 or more samples to refine on"):
        feta.prune(model, X[:3], 0.5, "wanda", refine=True)


def test_eleven_samples_are_enough():
    result = feta.prune(network(), X[:11], 0.5)
    check(result)
    assert [stage.name for stage in result.report.stages] == [LAYERS, FITTED, MOVING]


@pytest.mark.parametrize("effort", [None, "fast", "default", "best"])
def test_without_data(effort):
    """Thresholding alone needs none; there is nothing to fit or to judge by then."""
    model = network()
    result = feta.prune(model, None, 0.75, "threshold", effort=effort)
    assert [layer.nonzeros for layer in result.report.layers] == [60, 80]
    assert (result.report.stages, result.report.refinement) == ((), None)
    assert result.report.allocation.name == "uniform"


@pytest.mark.parametrize(
    "form",
    [lambda: iter(X.split(50)), lambda: [(x, None) for x in X.split(1)], lambda: {"input": X}],
    ids=["an iterator", "pairs", "a dict"],
)
def test_the_form_of_the_data_does_not_matter(form):
    model = network()
    expected, found = feta.prune(model, X, 0.8), feta.prune(model, form(), 0.8)
    check(found)
    assert kept(found) == kept(expected)
    for one, other in zip(found.report.stages, expected.report.stages, strict=True):
        assert one.distance == pytest.approx(other.distance, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(dtype):
    model = nn.Sequential(*network(), nn.Softmax(1)).to(dtype).eval()
    result = feta.prune(model, X, 0.8, layers=["0", "2"])
    assert {p.dtype for p in result.model.parameters()} == {dtype}
    assert sum(layer.nonzeros for layer in result.report.layers) == Sparsity(0.8).count(12 * 20 + 20 * 16)
    assert all(stage.distance is not None for stage in result.report.stages)
    assert kept(result) != LAYERS
    check(result)


# The caller's own


def test_the_callers_model_is_untouched():
    model, data, seen = network(), X.clone(), []
    model.train()
    model.relu1.eval()
    model.fc1.bias.requires_grad_(False)
    model.out.bias.grad = torch.ones_like(model.out.bias)
    model.fc2.register_forward_hook(lambda module, args, output: seen.append(1))

    def state() -> Any:
        modules = list(model.modules())
        return (
            copy.deepcopy({name: tensor.tolist() for name, tensor in model.state_dict().items()}),
            [m.training for m in modules],
            [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules],
            [p.requires_grad for p in model.parameters()],
            [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
            [bool(p._backward_hooks) for p in model.parameters()],
        )

    before, random, threads = state(), torch.random.get_rng_state(), torch.get_num_threads()
    result = feta.prune(model, data, 0.8)
    assert kept(result) != LAYERS
    assert state() == before
    assert torch.equal(data, X)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert {t.data_ptr() for t in model.parameters()}.isdisjoint(t.data_ptr() for t in result.model.parameters())
    assert [m.training for m in result.model.modules()] == before[1]
    assert [p.requires_grad for p in result.model.parameters()] == before[3]
    assert all(p.is_leaf and not p._backward_hooks for p in result.model.parameters())
    result.model(X).sum().backward()  # and it can be trained on
    torch.optim.SGD(result.model.parameters(), 0.1).step()
    assert int(result.model.fc1.weight.count_nonzero()) > int(result.masks["fc1"].sum())  # nobody holds its zeros


def test_the_same_seed_gives_the_same_network():
    model, found = network(), []
    for seed in (1, 1, 2):
        torch.rand(3)  # the caller's own draws do not matter
        found.append(feta.prune(model, X, 0.8, seed=seed))
    assert same(found[0].model, found[1].model)
    assert [s.distance for s in found[0].report.stages] == [s.distance for s in found[1].report.stages]
    assert not same(found[0].model, found[2].model)


# What a review found


class Towers(nn.Module):
    """Two answers from one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(12, 24), nn.Linear(24, 20), nn.Linear(24, 20)
        self.first, self.second = nn.Linear(20, 4), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.trunk(x))
        return {"first": self.first(torch.relu(self.one(h))), "second": self.second(torch.relu(self.two(h)))}


def test_of_several_outputs_none_is_fitted_at_the_cost_of_the_others():
    torch.manual_seed(0)
    model = Towers().eval()
    report = feta.prune(model, X, 0.7).report
    assert [stage.name for stage in report.stages] == [LAYERS]
    assert "several outputs" in report.stages[0].message
    assert "wrap the model so that it returns that one alone" in report.stages[0].message
    assert report.allocation.name == "uniform"


def test_logits_are_not_fitted_at_the_cost_of_another_head():
    class Detector(Towers):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            found = super().forward(x)
            return {"logits": found["first"], "boxes": found["second"].sigmoid()}

    report = feta.prune(Detector().eval(), X, 0.7).report
    assert [stage.name for stage in report.stages] == [LAYERS]
    assert "several outputs" in report.stages[0].message


@pytest.mark.parametrize("outputs", [2, 3, 5, 10])
def test_a_regression_stays_one(outputs):
    """KL would not see that all outputs move together."""
    torch.manual_seed(outputs)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, outputs))
    goal = torch.tanh(X @ torch.randn(12, outputs)) * 2
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(X), goal).backward()
        optimiser.step()
    result, fast = (feta.prune(model, X, 0.8, effort=effort) for effort in ("default", "fast"))
    fresh = torch.randn(400, 12, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        errors = [float((found.model(fresh) - model(fresh)).square().mean()) for found in (result, fast)]
    assert result.report.refinement is None or result.report.refinement.loss == "mse"
    assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("frozen", ["all", "first"])
def test_what_is_frozen_is_fitted_all_the_same_and_comes_back_frozen(frozen):
    model = network()
    for parameter in list(model.parameters())[: None if frozen == "all" else 2]:
        parameter.requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    result = feta.prune(model, X, 0.8)
    assert all(stage.distance is not None for stage in result.report.stages)
    assert [parameter.requires_grad for parameter in result.model.parameters()] == before
    assert [parameter.requires_grad for parameter in model.parameters()] == before


def test_a_time_budget_is_shared_by_the_fits(monkeypatch):
    given = []
    monkeypatch.setattr(recipe, "fitted", lambda *args: (given.append(args[3].seconds), fitted(*args))[1])
    feta.prune(network(), X, 0.8, seconds=40)
    assert given[0] < 11
    assert given[1] > 20


def test_data_that_asks_for_gradients_and_outputs_that_are_whole_numbers():
    rows = X.clone().requires_grad_()
    assert all(stage.distance is not None for stage in feta.prune(network(), rows, 0.8).report.stages)

    class Answers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).argmax(1)

    first, *others = feta.prune(Answers(), X, 0.8).report.stages
    assert first.kept
    assert all(stage.distance is None for stage in others)


def test_few_rows_are_said_after_a_fit_too(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(recipe, "STEPS", 1600)
    model = nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 3)).eval()
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter.mul_(20).sub_(parameter.mean(0))
    result = feta.prune(model, torch.randn(30, 6) @ torch.randn(6, 60), 0.9)
    assert kept(result) != LAYERS
    (layer,) = result.report.layers
    assert (layer.status, layer.relative_error) == ("few-rows", None)
    assert "samples would do" in layer.message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (X[:30], "of 30 samples only 3 could be held out; 200 samples would do"),
        (X[:1].expand(300, -1), "of 300 samples only 1 differ, which is too few; 200 different samples would do"),
        (X[:20].repeat(20, 1), "of 400 samples only 20 differ, which is too few; 200 different samples would do"),
    ],
    ids=["few", "constant", "repeated"],
)
def test_too_little_to_judge_by_is_no_good_word(rows, message):
    with pytest.warns(PruneWarning, match="of 2 layers needs? a look"):
        fast, default = (feta.prune(network(), rows, 0.5, effort=effort).report for effort in ("fast", "default"))
    # Of samples that are all the same a layer may keep all its weights, and then nothing is wrong with it.
    assert "ok" not in {layer.status for layer in (*fast.layers, *default.layers) if layer.sparsity > 0}
    assert default.stages[0].kept or {layer.message for layer in default.layers} == {message}


def test_a_network_that_is_far_off_is_said():
    with pytest.warns(PruneWarning, match="the network needs a look; beside the original, on .* held-out samples"):
        report = feta.prune(network(), X, 0.97).report
    assert report.held.far
    with pytest.warns(PruneWarning, match="the network needs a look; .*; prune less, or take the default effort"):
        feta.prune(network(), X, 0.9, "threshold")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not feta.prune(network(), X, 0.3).report.held.far


def test_weights_that_come_back_are_said():
    pruned = feta.prune(network(), X, 0.8, "threshold").model
    with pytest.warns(PruneWarning, match=r"weights came back: the model had [\d,]+ that are not zero, and now"):
        feta.prune(pruned, X, 0.3, effort="fast")


def test_warnings_point_at_the_line_that_called():
    with pytest.warns(PruneWarning) as told:
        feta.prune(network(), X[:20], 0.5, effort="fast")
    assert told[0].filename == __file__


def test_an_effort_that_is_no_word():
    with pytest.raises(ConfigError, match="effort must be 'fast', 'default' or 'best', got 3"):
        feta.prune(network(), X, 0.5, effort=3)
