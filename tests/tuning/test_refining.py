"""Refinement: outputs come nearer to the original's on rows that were not fitted, zeros stay, labels are not used."""

import copy
import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tuned import Around, build, holds, same

import feta
from feta.calibration.inputs import Inputs, places_of
from feta.errors import ConfigError, ModelError
from feta.tuning import loop

DATA = torch.randn(400, 12, generator=torch.Generator().manual_seed(1))
FRESH = torch.randn(200, 12, generator=torch.Generator().manual_seed(2))
MANY = torch.randn(5200, 12, generator=torch.Generator().manual_seed(3))  # of so many none need be mixed to judge
SHORT = feta.Refinement(steps=100, learning_rate=2e-3)


@pytest.fixture(scope="module")
def dense():
    return build(12, 24, 16, 4)


@pytest.fixture(scope="module")
def pruned(dense):
    return feta.prune(dense, sparsity=0.6, method="threshold")


@torch.no_grad()
def divergence(model: nn.Module, reference: nn.Module, x: torch.Tensor) -> float:
    """KL(softmax f0 || softmax f) in float64, from its definition."""
    p, q = (m(x).double().softmax(1) for m in (reference, model))
    return float((p * (p / q).log()).sum(1).mean())


@torch.no_grad()
def squares(model: nn.Module, reference: nn.Module, x: torch.Tensor) -> float:
    return float((model(x).double() - reference(x).double()).square().mean())


@torch.no_grad()
def angles(model: nn.Module, reference: nn.Module, x: torch.Tensor) -> float:
    o, t = (m(x).double() for m in (model, reference))
    return float((1 - (o * t).sum(1) / (o.norm(dim=1) * t.norm(dim=1))).mean())


@torch.no_grad()
def differences(model: nn.Module, reference: nn.Module, x: torch.Tensor) -> float:
    o, t = (m(x).double().softmax(1) for m in (model, reference))
    return float((o - t).abs().sum(1).mean() / 2)


MEASURES = {"kl": divergence, "mse": squares, "cosine": angles}
MEASURED = {differences: "difference of probabilities", squares: "mean squared difference", angles: "1 − cosine"}


@pytest.mark.parametrize("loss", MEASURES)
def test_it_comes_nearer_on_rows_it_has_not_seen(pruned, dense, loss):
    before, original = copy.deepcopy(pruned.model), copy.deepcopy(dense)
    state, threads, points = torch.random.get_rng_state(), torch.get_num_threads(), []
    settings = feta.Refinement(loss=loss, steps=120, learning_rate=2e-3)
    result = feta.refine(pruned.model, dense, MANY, settings, callback=points.append)
    report, measure = result.report, MEASURES[loss]
    assert measure(result.model, dense, FRESH) < 0.7 * measure(pruned.model, dense, FRESH)
    assert holds(result.model, pruned.masks)
    assert all(torch.equal(mask, pruned.masks[name]) for name, mask in result.masks.items())
    assert list(result.masks) == list(pruned.masks)
    assert same(pruned.model, before)
    assert same(dense, original)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not any(p.grad is not None for p in (*dense.parameters(), *result.model.parameters()))
    held = MANY[places_of(5200) % 10 == 0]
    judged = differences if loss == "kl" else measure  # of many rows
    assert report.loss_before == pytest.approx(judged(pruned.model, dense, held), rel=1e-4)
    assert report.loss_after == pytest.approx(judged(result.model, dense, held), rel=1e-4)
    assert report.loss_after == min(point.loss for point in report.history)
    assert tuple(points) == report.history
    assert [point.steps for point in points] == [0, 30, 60, 90, 120]
    assert (report.stopped, report.steps, report.loss) == ("steps", 120, loss)
    assert (report.learning_rate, report.support) == (2e-3, "fixed")
    assert [s for s, *_ in points] == sorted(s for s, *_ in points)
    assert points[-1].seconds <= report.seconds
    assert repr(report).startswith(f"refined: {MEASURED[judged]} of the outputs ")
    assert report.to_dict()["history"][0] == list(points[0])


def batches_of(x: torch.Tensor, size: int, steps: int, seed: int) -> list[torch.Tensor]:
    """The rows of each step: drawn with replacement out of those that are not held out, and as many for mixing."""
    rows = x[places_of(len(x)) % 10 != 0]
    generator = torch.Generator().manual_seed(seed * 1_000_003)
    return [rows[torch.randint(len(rows), (2, size), generator=generator)[0]] for _ in range(steps)]


def kl_of_two(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """At temperature two."""
    p, q = (target / 2).softmax(1), (output / 2).softmax(1)
    return 4 * (p * (p.log() - q.log())).sum(1).mean()


@pytest.mark.parametrize(("loss", "function"), [("mse", F.mse_loss), ("kl", kl_of_two)])
def test_it_is_adam_with_a_cosine(pruned, dense, loss, function):
    """A reference in float64 from the equations, every look a lower loss."""
    start, original, x = copy.deepcopy(pruned.model).double(), copy.deepcopy(dense).double(), DATA.double()
    model = copy.deepcopy(start)
    first, second = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    masks = {f"{name}.weight": mask for name, mask in pruned.masks.items()}
    for t, batch in enumerate(batches_of(x, 50, 9, seed=7)):
        rate = 0.001 * (1 + math.cos(math.pi * t / 9)) / 2
        value = function(model(batch), original(batch).detach())
        gradients = torch.autograd.grad(value, list(model.parameters()))
        for (name, p), g, m, v in zip(model.named_parameters(), gradients, first, second, strict=True):
            g = g * masks[name] if name in masks else g
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            with torch.no_grad():
                p -= rate * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
    settings = feta.Refinement(steps=9, learning_rate=0.001, batch_size=50, loss=loss, mixing=False)
    result = feta.refine(start, original, x, settings, seed=7)
    losses = [point.loss for point in result.report.history]
    assert losses == sorted(losses, reverse=True)
    for found, expected in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_a_rate_that_only_spoils_gives_back_what_came_in(pruned, dense):
    near = feta.refine(pruned.model, dense, DATA, SHORT).model
    result = feta.refine(near, dense, DATA, feta.Refinement(steps=4, learning_rate=1e4))
    assert same(result.model, near)
    assert result.report.loss_after == result.report.loss_before
    assert all(point.loss > result.report.loss_before for point in result.report.history[1:])


def test_a_rate_that_is_too_long_is_cut_to_one_that_helps(pruned, dense):
    report = feta.refine(pruned.model, dense, DATA, steps=400, learning_rate=1.0).report
    assert report.history[1].loss > report.loss_before
    assert report.loss_after < 0.7 * report.loss_before


def test_time_is_up(pruned, dense):
    report = feta.refine(pruned.model, dense, DATA, seconds=1e-9).report
    assert (report.stopped, report.steps) == ("seconds", 0)
    assert report.loss_after == report.loss_before


def test_the_rate_reaches_zero_where_the_time_ends(pruned, dense, monkeypatch):
    """With a clock of its own: each batch takes a second, ten are given, all steps would take nineteen."""
    ticks, rates, update = iter(range(1000)), [], loop.Loop.update

    def noted(run, x, y):
        rates.extend(run.rates)
        return update(run, x, y)

    monkeypatch.setattr(loop.Loop, "_spent", lambda run: next(ticks) / run.seconds)
    monkeypatch.setattr(loop.Loop, "update", noted)
    settings = feta.Refinement(steps=19, seconds=10, learning_rate=1e-3)
    report = feta.refine(pruned.model, dense, DATA, settings).report
    assert (report.stopped, report.steps) == ("seconds", 10)
    assert rates == pytest.approx([1e-3 * (1 + math.cos(math.pi * t / 10)) / 2 for t in range(10)])


# Data

LABELS = torch.zeros(400, dtype=torch.long)


@pytest.mark.parametrize(
    "form",
    [
        lambda: DataLoader(TensorDataset(DATA, LABELS), batch_size=80),
        lambda: DataLoader(TensorDataset(DATA, LABELS)),
        lambda: iter(DATA.split(80)),
        lambda: (x for x in DATA.split(33)),
        lambda: [(x, None) for x in DATA.split(80)],
    ],
)
def test_every_form_of_data(pruned, dense, form):
    expected = feta.refine(pruned.model, dense, DATA, SHORT).model
    assert same(feta.refine(pruned.model, dense, form(), SHORT).model, expected)
    assert divergence(expected, dense, FRESH) < divergence(pruned.model, dense, FRESH)


def named(inner: nn.Module) -> nn.Module:
    return Around(inner, lambda inner, input, scale=1.0: (inner(input * scale), "more"))


def speechless(inner: nn.Module) -> nn.Module:
    return Around(inner, lambda inner, input: (inner(input).argmax(1), "more"))


def test_dicts_and_models_that_return_more_than_scores(pruned, dense):
    data = [{"input": x, "labels": None} for x in DATA.split(80)]
    result = feta.refine(named(pruned.model), named(dense), data, SHORT)
    assert same(result.model.inner, feta.refine(pruned.model, dense, DATA, SHORT).model)
    scaled = [{"input": x, "scale": 1.0, "labels": None} for x in DATA.split(80)]  # read batch by batch
    result = feta.refine(named(pruned.model), named(dense), scaled, SHORT)
    assert divergence(result.model.inner, dense, FRESH) < divergence(pruned.model, dense, FRESH)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("total", "held"), [(4, 1), (39, 4), (40, 4), (400, 40)])
def test_rows_are_fitted_or_held_out_never_both(pruned, dense, ragged, total, held):
    """Rows that are fitted run forwards with gradients, those to judge by without."""
    fitted, judged, graphs = set(), set(), []

    def call(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen = {tuple(row) for row in x[:, :12].tolist()}
        (fitted if torch.is_grad_enabled() else judged).update(seen & whole)
        return inner(x[:, :12])

    data, whole = DATA[:total], {tuple(row) for row in DATA[:total].tolist()}
    wider = [torch.cat([x, torch.zeros(len(x), i % 2)], 1) for i, x in enumerate(data.split(7))]
    reference = Around(dense, lambda inner, x: graphs.append(torch.is_grad_enabled()) or inner(x[:, :12])).eval()
    settings = dataclasses.replace(SHORT, mixing=False)
    feta.refine(Around(pruned.model, call).eval(), reference, wider if ragged else data, settings)
    expected = {tuple(row) for row in data[places_of(total) % 10 == 0].tolist()}
    assert len(expected) == held
    assert fitted == whole - expected
    assert judged == expected
    assert not any(graphs)  # of the reference, which is never run backwards


def test_fewer_samples_are_those_that_prune_takes(pruned, dense):
    subset = torch.cat(list(Inputs(DATA, n_samples=100, seed=3)))
    first = feta.refine(pruned.model, dense, DATA, SHORT, n_samples=100, seed=3).model
    assert same(first, feta.refine(pruned.model, dense, subset, SHORT, seed=3).model)


def test_half_precision_is_fitted_in_single(dense):
    model = feta.prune(copy.deepcopy(dense).bfloat16(), sparsity=0.6, method="threshold")
    result = feta.refine(model.model, dense, DATA, SHORT)
    assert {p.dtype for p in result.model.parameters()} == {torch.bfloat16}
    assert holds(result.model, model.masks)
    assert squares(result.model.float(), dense, FRESH) < squares(model.model.float(), dense, FRESH)


def test_batch_norm_is_left_in_eval_mode():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    dense[1].eval()
    pruned = feta.prune(dense, sparsity=0.5, method="threshold", layers=["0"])
    result = feta.refine(pruned.model, dense, DATA, SHORT)
    assert torch.equal(result.model[1].running_mean, dense[1].running_mean)
    assert [module.training for module in result.model] == [module.training for module in dense]
    assert result.report.loss_after < result.report.loss_before


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"steps": 0}, ConfigError, "Refinement.steps must be > 0 and finite, got 0"),
        ({"learning_rate": -1}, ConfigError, "Refinement.learning_rate must be > 0 and finite, got -1"),
        ({"seconds": math.nan}, ConfigError, "Refinement.seconds must be > 0 and finite, got nan"),
        ({"data": DATA[:3]}, ConfigError, "data must hold 4 or more samples to refine on, one to judge by, got 3"),
        ({"data": 3}, ConfigError, "data must be a tensor or an iterable"),
        ({"learning_rate": 1e30}, ModelError, "must keep a finite loss, got (nan|inf).*; lower learning_rate"),
        ({"settings": {"steps": 1}}, ConfigError, "settings must be a feta.Refinement, got {'steps': 1}"),
        ({"reference": nn.Linear(12, 3)}, ModelError, r"outputs of one shape, got \(4,\) and \(3,\)"),
        ({"reference": speechless(build(12, 4))}, ModelError, "list or mapping that holds one, got tuple"),
    ],
)
def test_bad_input(pruned, dense, options, kind, message):
    with pytest.raises(kind, match=message):
        feta.refine(pruned.model, **{"reference": dense, "data": DATA, **options})


def test_networks_that_have_changed_places_are_refused(dense, pruned):
    with pytest.raises(ConfigError, match=r"the pruned network, got one without zeros .* feta.refine\(pruned"):
        feta.refine(dense, pruned.model, DATA, SHORT)
    assert feta.refine(dense, pruned.model, DATA, SHORT, masks={}).report.steps == SHORT.steps
    other = feta.prune(build(12, 30, 16, 4), sparsity=0.6, method="threshold").model
    assert feta.refine(dense, other, DATA, SHORT).report.steps == SHORT.steps  # as of a network that was rebuilt


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"unknown Refinement\.loss 'klm'; did you mean 'kl'"):
        feta.Refinement(loss="klm")
    with pytest.raises(ConfigError, match=r"unknown Refinement\.support 'movin'; did you mean 'moving'"):
        feta.Refinement(support="movin")
    with pytest.raises(ConfigError, match=r"Refinement.mixing must be True, False or a Mixing, got 0.5"):
        feta.Refinement(mixing=0.5)


def test_one_output_is_no_class():
    dense = build(12, 24, 1)
    pruned = feta.prune(dense, sparsity=0.5, method="threshold").model
    with pytest.raises(ConfigError, match="loss must be 'mse' for a model with one output, got 'kl'"):
        feta.refine(pruned, dense, DATA, feta.Refinement(loss="kl"))
    report = feta.refine(pruned, dense, DATA, SHORT).report
    assert report.loss == "mse"
    assert report.loss_after < report.loss_before


def test_every_option_is_documented():
    page = Path(__file__).parents[2] / "docs" / "retraining.md"
    rows = dict(re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert rows == {field.name: str(field.default) for field in dataclasses.fields(feta.Refinement)}


# As a stage of prune


@pytest.mark.parametrize("method", ["threshold", "wanda", "feta"])
def test_prune_and_refine(dense, method):
    plain = feta.prune(dense, DATA, 0.8, method)
    events = []
    both = feta.prune(dense, DATA, 0.8, method, refine=SHORT, callback=events.append)
    assert plain.report.refinement is None
    assert both.report.refinement.steps == 100
    assert [layer.nonzeros for layer in both.report.layers] == [layer.nonzeros for layer in plain.report.layers]
    assert all(torch.equal(both.masks[name], mask) for name, mask in plain.masks.items())
    assert all(not both.model.get_submodule(n).weight[~mask].any() for n, mask in both.masks.items())
    assert divergence(both.model, dense, FRESH) < divergence(plain.model, dense, FRESH)
    separate = feta.refine(plain.model, dense, DATA, SHORT, masks=plain.masks)
    assert same(both.model, separate.model)
    losses = [event.values["loss"] for event in events if event.phase == "refine"]
    assert losses == [point.loss for point in both.report.refinement.history]
    assert "refined: " in repr(both)
    assert both.report.to_dict()["refinement"]["loss_after"] == both.report.refinement.loss_after


def test_prune_and_refine_on_data_that_can_be_read_once(dense):
    result = feta.prune(dense, iter(DATA.split(80)), 0.8, "wanda", refine=SHORT)
    assert result.report.refinement.loss_after < result.report.refinement.loss_before


def test_refinement_needs_data(dense):
    with pytest.raises(ConfigError, match="data must be given for compensate, batchnorm and refine, got None"):
        feta.prune(dense, sparsity=0.5, method="threshold", refine=True)
