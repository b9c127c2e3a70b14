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
from feta.tuning.batches import Original, StreamBatches, TensorBatches, matched

DATA = torch.randn(400, 12, generator=torch.Generator().manual_seed(1))
FRESH = torch.randn(200, 12, generator=torch.Generator().manual_seed(2))


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


MEASURES = {"kl": divergence, "mse": squares}


@pytest.mark.parametrize("loss", MEASURES)
def test_it_comes_nearer_on_rows_it_has_not_seen(pruned, dense, loss):
    before, original = copy.deepcopy(pruned.model), copy.deepcopy(dense)
    state, threads, points = torch.random.get_rng_state(), torch.get_num_threads(), []
    settings = feta.Refinement(loss=loss, passes=8, learning_rate=2e-3)
    result = feta.refine(pruned.model, dense, DATA, settings, callback=points.append)
    report, measure = result.report, MEASURES[loss]
    assert measure(result.model, dense, FRESH) < 0.7 * measure(pruned.model, dense, FRESH)
    assert holds(result.model, pruned.masks)
    assert same(pruned.model, before)
    assert same(dense, original)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not any(p.grad is not None for p in dense.parameters())
    held = DATA[places_of(400) % 20 == 0]
    assert report.loss_before == pytest.approx(measure(pruned.model, dense, held), rel=1e-4)
    assert report.loss_after == pytest.approx(measure(result.model, dense, held), rel=1e-4)
    assert report.loss_after == min(point.loss for point in report.history)
    assert tuple(points) == report.history
    assert (report.stopped, report.passes, report.loss) == ("passes", 8.0, loss)
    assert [s for s, *_ in points] == sorted(s for s, *_ in points)
    assert points[-1].seconds <= report.seconds
    assert repr(report).startswith(f"refined: {loss} of the outputs ")
    assert report.to_dict()["history"][0] == list(points[0])


def test_it_is_adam_with_a_cosine(pruned, dense):
    """A reference in float64 from the equations, one pass, every look a lower loss."""
    start, original, x = copy.deepcopy(pruned.model).double(), copy.deepcopy(dense).double(), DATA.double()
    model = copy.deepcopy(start)
    rows = (places_of(400) % 20).nonzero()[:, 0]
    order = rows[torch.randperm(380, generator=torch.Generator().manual_seed(7 * 1_000_003))]
    first, second = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    masks = {f"{name}.weight": mask for name, mask in pruned.masks.items()}
    for t, batch in enumerate(order.split(50)):
        rate = 0.003 * (1 + math.cos(math.pi * t * 50 / 380)) / 2
        loss = F.mse_loss(model(x[batch]), original(x[batch]).detach())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for (name, p), g, m, v in zip(model.named_parameters(), gradients, first, second, strict=True):
            g = g * masks[name] if name in masks else g
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            with torch.no_grad():
                p -= rate * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
    settings = feta.Refinement(passes=1, learning_rate=0.003, batch_size=50, loss="mse")
    result = feta.refine(start, original, x, settings, seed=7)
    losses = [point.loss for point in result.report.history]
    assert losses == sorted(losses, reverse=True)
    for found, expected in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_a_rate_that_only_spoils_gives_back_what_came_in_and_stops_early(pruned, dense):
    near = feta.refine(pruned.model, dense, DATA, passes=8).model
    result = feta.refine(near, dense, DATA, feta.Refinement(passes=40, batch_size=10), learning_rate=1e4)
    assert same(result.model, near)
    assert (result.report.stopped, result.report.passes) == ("held-out", pytest.approx(2, abs=0.02))
    assert result.report.loss_after == result.report.loss_before


def test_a_rate_that_is_too_long_is_cut_to_one_that_helps(pruned, dense):
    report = feta.refine(pruned.model, dense, DATA, passes=6, learning_rate=1.0).report
    assert report.history[1].loss > report.loss_before
    assert report.loss_after < 0.7 * report.loss_before


def test_time_is_up(pruned, dense):
    report = feta.refine(pruned.model, dense, DATA, seconds=1e-9).report
    assert (report.stopped, report.passes) == ("seconds", 0.0)
    assert report.loss_after == report.loss_before


def test_the_rate_reaches_zero_where_the_time_ends(pruned, dense, monkeypatch):
    """With a clock of its own: each batch takes a second, ten are given, a pass would be nineteen."""
    ticks, rates, update = iter(range(1000)), [], loop.Loop.update

    def noted(run, x, y):
        rates.extend(run.rates)
        return update(run, x, y)

    monkeypatch.setattr(loop.Loop, "_spent", lambda run: next(ticks) / run.seconds)
    monkeypatch.setattr(loop.Loop, "update", noted)
    settings = feta.Refinement(seconds=10, batch_size=20, learning_rate=1e-3)
    assert feta.refine(pruned.model, dense, DATA, settings).report.stopped == "seconds"
    assert rates == pytest.approx([1e-3 * (1 + math.cos(math.pi * t / 10)) / 2 for t in range(10)])


# Data

LABELS = torch.zeros(400, dtype=torch.long)


@pytest.mark.parametrize(
    "form",
    [
        lambda: DataLoader(TensorDataset(DATA, LABELS), batch_size=80),
        lambda: iter(DATA.split(80)),
        lambda: [(x, None) for x in DATA.split(80)],
    ],
)
def test_every_form_of_data(pruned, dense, form):
    expected = feta.refine(pruned.model, dense, list(DATA.split(80))).model
    assert same(feta.refine(pruned.model, dense, form()).model, expected)
    assert divergence(expected, dense, FRESH) < divergence(pruned.model, dense, FRESH)


def named(inner: nn.Module) -> nn.Module:
    return Around(inner, lambda inner, input, scale=1.0: (inner(input * scale), "more"))


def speechless(inner: nn.Module) -> nn.Module:
    return Around(inner, lambda inner, input: (inner(input).argmax(1), "more"))


def test_dicts_and_models_that_return_more_than_scores(pruned, dense):
    data = [{"input": x, "scale": 1.0, "labels": None} for x in DATA.split(80)]
    result = feta.refine(named(pruned.model), named(dense), data)
    assert same(result.model.inner, feta.refine(pruned.model, dense, list(DATA.split(80))).model)


def rows_for(model: nn.Module, data, share=0.05):
    return matched(data, Original(model, torch.device("cpu"), torch.float32), share, 5, None, 0)


@pytest.mark.parametrize("kind", [TensorBatches, StreamBatches])
@pytest.mark.parametrize(("total", "held"), [(2, 1), (39, 2), (40, 2), (400, 20)])
def test_rows_are_fitted_or_held_out_never_both(dense, kind, total, held):
    x = torch.arange(total * 12, dtype=torch.float32).reshape(total, 12)
    data = x if kind is TensorBatches else list(x.split(7))
    rows, held_out = rows_for(dense, data)
    assert isinstance(rows, kind)
    fitted = torch.cat([batch.x for batch in rows.over(0)])
    judged = torch.cat([batch.x for batch in held_out()])
    assert (len(fitted), len(judged)) == (rows.length, held)
    assert torch.equal(torch.cat([fitted, judged]).sort(0).values, x)
    for batch, target, size in rows.over(1):
        assert size == len(batch) <= 5
        assert torch.allclose(target, dense(batch), rtol=1e-4)
    assert total == 2 or not torch.equal(fitted, torch.cat([batch.x for batch in rows.over(1)]))


def test_held_out_rows_have_a_limit(dense):
    _, held_out = rows_for(dense, torch.zeros(100_000, 12), 0.5)
    assert 1990 <= sum(batch.size for batch in held_out()) <= 2000


def test_outputs_larger_than_the_inputs_are_not_kept():
    wide = nn.Linear(2, 5)
    rows, held_out = rows_for(wide, torch.randn(30, 2))
    assert all(torch.equal(batch.y, wide(batch.x)) for batch in [*held_out(), *rows.over(0)])


def test_fewer_samples_are_those_that_prune_takes(pruned, dense):
    subset = torch.cat(list(Inputs(DATA, n_samples=100, seed=3)))
    first = feta.refine(pruned.model, dense, DATA, n_samples=100, seed=3).model
    assert same(first, feta.refine(pruned.model, dense, subset, seed=3).model)


def test_half_precision_is_fitted_in_single(dense):
    model = feta.prune(copy.deepcopy(dense).bfloat16(), sparsity=0.6, method="threshold")
    result = feta.refine(model.model, dense, DATA, passes=8)
    assert {p.dtype for p in result.model.parameters()} == {torch.bfloat16}
    assert holds(result.model, model.masks)
    assert squares(result.model.float(), dense, FRESH) < squares(model.model.float(), dense, FRESH)


def test_batch_norm_is_left_in_eval_mode():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    dense[1].eval()
    pruned = feta.prune(dense, sparsity=0.5, method="threshold", layers=["0"])
    result = feta.refine(pruned.model, dense, DATA)
    assert torch.equal(result.model[1].running_mean, dense[1].running_mean)
    assert [module.training for module in result.model] == [module.training for module in dense]
    assert result.report.loss_after < result.report.loss_before


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"passes": 0}, ConfigError, "Refinement.passes must be > 0 and finite, got 0"),
        ({"learning_rate": -1}, ConfigError, "Refinement.learning_rate must be > 0 and finite, got -1"),
        ({"seconds": math.nan}, ConfigError, "Refinement.seconds must be > 0 and finite, got nan"),
        ({"data": DATA[:1]}, ConfigError, "data must hold 2 or more samples to refine on, .* got 1"),
        ({"data": 3}, ConfigError, "data must be a tensor or an iterable"),
        ({"learning_rate": 1e30}, ModelError, "must keep a finite loss, got (nan|inf).*; lower learning_rate"),
        ({"settings": {"passes": 1}}, ConfigError, "settings must be a feta.Refinement, got dict"),
        ({"reference": nn.Linear(12, 3)}, ModelError, r"outputs of one shape, got \(4,\) and \(3,\)"),
        ({"reference": speechless(build(12, 4))}, ModelError, "list or mapping that holds one, got tuple"),
    ],
)
def test_bad_input(pruned, dense, options, kind, message):
    with pytest.raises(kind, match=message):
        feta.refine(pruned.model, **{"reference": dense, "data": DATA, **options})


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"Refinement.held_out must be in \(0, 0.5\], got 0.6"):
        feta.Refinement(held_out=0.6)
    with pytest.raises(ConfigError, match="unknown loss 'klm'; did you mean 'kl'"):
        feta.Refinement(loss="klm")


def test_one_output_is_no_class():
    dense = build(12, 24, 1)
    pruned = feta.prune(dense, sparsity=0.5, method="threshold").model
    with pytest.raises(ConfigError, match="loss must be 'mse' for a model with one output, got 'kl'"):
        feta.refine(pruned, dense, DATA)
    report = feta.refine(pruned, dense, DATA, feta.Refinement(loss="mse")).report
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
    both = feta.prune(dense, DATA, 0.8, method, refine=feta.Refinement(passes=6), callback=events.append)
    assert plain.report.refinement is None
    assert 1 < both.report.refinement.passes <= 6  # held-out rows may say that more is useless
    assert [layer.nonzeros for layer in both.report.layers] == [layer.nonzeros for layer in plain.report.layers]
    assert all(torch.equal(both.masks[name], mask) for name, mask in plain.masks.items())
    assert all(not both.model.get_submodule(n).weight[~mask].any() for n, mask in both.masks.items())
    assert divergence(both.model, dense, FRESH) < divergence(plain.model, dense, FRESH)
    separate = feta.refine(plain.model, dense, DATA, masks=plain.masks, passes=6)
    assert same(both.model, separate.model)
    losses = [event.values["loss"] for event in events if event.phase == "refine"]
    assert losses == [point.loss for point in both.report.refinement.history]
    assert "refined: " in repr(both)
    assert both.report.to_dict()["refinement"]["loss_after"] == both.report.refinement.loss_after


def test_prune_and_refine_on_data_that_can_be_read_once(dense):
    result = feta.prune(dense, iter(DATA.split(80)), 0.8, "wanda", refine=True)
    assert result.report.refinement.loss_after < result.report.refinement.loss_before


def test_refinement_needs_data(dense):
    with pytest.raises(ConfigError, match="data must be given for compensate, batchnorm and refine, got None"):
        feta.prune(dense, sparsity=0.5, method="threshold", refine=True)
