"""Fits of a whole network: the rate that is found, what is fitted and what is not, how it is judged, odd data."""

import copy
import math
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tuned import Around, build, holds, same

import feta
from feta.calibration.inputs import Inputs, places_of
from feta.masks import _LIVE
from feta.tuning import fitting
from feta.tuning.bench import RATES
from feta.tuning.draws import Original, targets
from feta.tuning.fitting import APART, LOOKS, Fit, Judge
from feta.tuning.matching import Match
from feta.tuning.mixing import Mixing

X = torch.randn(300, 12, generator=torch.Generator().manual_seed(1))
SHORT = feta.Refinement(steps=60, learning_rate=2e-3)
CPU = torch.device("cpu")


def cut(model: nn.Module, layers: Any = None) -> feta.PruneResult:
    return feta.prune(model, sparsity=0.6, method="threshold", layers=layers)


# The learning rate


def mean_loss(start: nn.Module, original: nn.Module, masks: dict[str, Tensor], rate: float, steps: int) -> float:
    """Of the second half of a short fit, by torch's plain Adam; rows are drawn as refinement draws them."""
    model, x = copy.deepcopy(start), X.double()[places_of(300) % 10 != 0]
    adam, generator, losses = torch.optim.Adam(model.parameters(), rate), torch.Generator().manual_seed(0), []
    for t in range(steps):
        batch = x[torch.randint(len(x), (2, 100), generator=generator)[0]]
        adam.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * t / steps)) / 2
        adam.zero_grad()
        loss = F.mse_loss(model(batch), original(batch).detach())
        losses.append(float(loss.detach()))
        loss.backward()
        adam.step()
        with torch.no_grad():
            for name, mask in masks.items():
                model.get_submodule(name).weight.mul_(mask)
    return sum(losses[steps // 2 :])


@pytest.mark.parametrize("scale", [0.03, 1.0, 8.0])
@pytest.mark.parametrize("support", ["fixed", "moving"])
def test_the_rate_is_the_best_of_a_few_short_tries(scale, support):
    """From large to small, until one does worse than the one before; tries leave no trace."""
    original = build(12, 24, 16, 4).double()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.mul_(scale)
    start = cut(original)
    tried = []
    for rate in RATES:
        tried.append((mean_loss(start.model, original, start.masks, rate, 20), rate))  # thresholded either way
        if len(tried) > 1 and tried[-1] > tried[-2]:
            break
    settings = feta.Refinement(40, support, batch_size=100, loss="mse", mixing=False)
    found = feta.refine(start.model, original, X.double(), settings)
    assert found.report.learning_rate == min(tried)[1]
    again = feta.refine(start.model, original, X.double(), settings, learning_rate=min(tried)[1])
    assert same(found.model, again.model)
    assert [point.loss for point in found.report.history] == [point.loss for point in again.report.history]


@pytest.mark.parametrize(("steps", "length"), [(10, 20), (1000, 50), (9999, 100)])
def test_a_try_is_short(monkeypatch, steps, length):
    lengths = []
    monkeypatch.setattr(Fit, "trial", lambda fit, within: lengths.append(fit.length) or float(len(lengths)))
    monkeypatch.setattr(Fit, "go", lambda fit: fit.look() or "steps")
    model = build(12, 8, 4)
    report = feta.refine(cut(model).model, model, X, steps=steps).report
    assert lengths == [length] * 2
    assert report.learning_rate == RATES[0]


def test_a_rate_that_runs_away_is_not_taken(monkeypatch):
    monkeypatch.setattr("feta.tuning.bench.RATES", (1e30, 1e-3))
    model = build(12, 24, 4)
    report = feta.refine(cut(model).model, model, X, steps=40).report
    assert report.learning_rate == 1e-3


def test_no_rate_is_tried_once_its_share_of_the_time_is_over(monkeypatch):
    def never(fit: Fit, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise AssertionError("tried")

    monkeypatch.setattr(Fit, "update", never)
    model = build(12, 24, 4)
    report = feta.refine(cut(model).model, model, X, seconds=1e-9).report
    assert (report.learning_rate, report.steps) == (1e-3, 0)


def test_tries_end_when_their_share_of_the_time_is_over(monkeypatch):
    """Slow steps: a try of a hundred of them would take all of the time there is."""
    update, trial, tried = Fit.update, Fit.trial, list[tuple[float | None, int]]()

    def slow(fit: Fit, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return update(fit, x, y)

    def counted(fit: Fit, within: float) -> float | None:
        found = trial(fit, within)
        tried.append((found, fit.steps))
        return found

    monkeypatch.setattr(Fit, "update", slow)
    monkeypatch.setattr(Fit, "trial", counted)
    model = build(12, 24, 4)
    report = feta.refine(cut(model).model, model, X, steps=5000, seconds=1.0).report
    ((found, steps),) = tried
    assert found is None
    assert 0 < steps <= 10
    assert report.steps > steps
    assert report.learning_rate == 1e-3


@pytest.mark.parametrize("steps", [1, APART - 1, 2 * APART, LOOKS * APART, 3 * LOOKS * APART])
def test_looks_are_apart_and_have_a_limit(monkeypatch, steps):
    monkeypatch.setattr(Fit, "update", lambda fit, x, y: torch.zeros(()))
    model = build(12, 3)
    points = feta.refine(model, model, X, feta.Refinement(steps, learning_rate=1e-3, batch_size=1)).report.history
    assert len(points) == 1 + min(LOOKS, max(1, steps // APART))
    assert (points[0].steps, points[-1].steps) == (0, steps)


def test_the_weights_of_the_best_look_are_kept(monkeypatch):
    """The last look is a little worse, not so much that the fit goes back by itself."""
    scores, seen = iter([-1.0, -0.5, -0.55]), []

    def told(fit: Fit) -> float:
        seen.append(copy.deepcopy(fit.model))
        return next(scores)

    monkeypatch.setattr(Fit, "judge", told)
    model = build(12, 24, 4)
    result = feta.refine(cut(model).model, model, X, feta.Refinement(2 * APART, learning_rate=1e-3))
    assert same(result.model, seen[1])
    assert not same(result.model, seen[2])
    assert result.report.loss_after == 0.5


# What is fitted


def test_masks_that_are_given_say_what_may_live():
    model = build(12, 24, 4)
    start = cut(model)
    wide = {name: mask | (torch.arange(mask.shape[1]) < 3) for name, mask in start.masks.items()}
    result = feta.refine(start.model, model, X, SHORT, masks=wide)
    assert torch.equal(result.model[0].weight != 0, wide["0"])
    assert torch.equal(result.masks["0"], wide["0"])
    assert not torch.equal(wide["0"], start.masks["0"])


class Words(nn.Module):
    """A score for each word at each position; what is padding changes nothing elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.fc1, self.fc2 = nn.Embedding(30, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 30)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(input_ids)
        return self.head(x + self.fc2(torch.relu(self.fc1(x))))


def texts(fill: int = 0, count: int = 40) -> list[dict[str, Tensor]]:
    """Batches of texts of two lengths, padded at the end."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for width in (6, 9):
        lengths = torch.randint(2, width + 1, (count,), generator=generator)
        mask = torch.arange(width) < lengths[:, None]
        ids = torch.randint(1, 30, (count, width), generator=generator)
        found.append({"input_ids": ids.where(mask, fill), "attention_mask": mask.long()})
    return found


@pytest.mark.parametrize("support", ["fixed", "moving"])
def test_tables_of_embeddings_are_not_fitted(support):
    model = Words()
    start = cut(model, ["fc1", "fc2"])
    result = feta.refine(start.model, model, texts(), feta.Refinement(60, support, learning_rate=2e-3))
    assert torch.equal(result.model.words.weight, model.words.weight)
    for name in ("fc1.weight", "fc1.bias", "head.weight", "head.bias"):
        assert not torch.equal(result.model.state_dict()[name], start.model.state_dict()[name])
    assert result.report.loss_after < result.report.loss_before
    assert [int(m.sum()) for m in result.masks.values()] == [int(m.sum()) for m in start.masks.values()]


def test_parameters_that_no_row_reaches_stay():
    """One has never a gradient, another in some steps."""

    def call(parts: nn.ModuleList, x: Tensor) -> Tensor:
        y = parts[0](x)
        return parts[1](y) if len(x) != 90 else y * 1.0

    torch.manual_seed(0)
    model = Around(nn.ModuleList([build(12, 24, 4), nn.Linear(4, 4), nn.Linear(4, 4)]), call).eval()
    start = cut(model, ["inner.0.*"])
    data = [torch.cat([x, x[:, :0]], 1) for x in X.split(100)]
    result = feta.refine(start.model, model, data, SHORT)
    assert torch.equal(result.model.inner[2].weight, model.inner[2].weight)
    assert not torch.equal(result.model.inner[1].weight, model.inner[1].weight)
    assert result.report.loss_after < result.report.loss_before


# Data


def test_padding_changes_nothing():
    model = Words()
    start = cut(model, ["fc1", "fc2"]).model
    one, other = (feta.refine(start, model, texts(fill), SHORT) for fill in (0, 13))
    assert same(one.model, other.model)
    assert one.report.loss_before == other.report.loss_before
    assert one.report.loss == "kl"  # there is a score for each token


def test_models_of_several_inputs():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = build(12, 20, 4), build(6, 20, 4)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            return self.a(one) + self.b(two)

    model = Sum().eval()
    start, more = cut(model, ["a.0", "b.0"]), torch.randn(300, 6, generator=torch.Generator().manual_seed(4))
    pairs = list(zip(X.split(50), more.split(50), strict=True))
    results = [feta.refine(start.model, model, data, SHORT) for data in (pairs, iter(pairs), {"one": X, "two": more})]
    assert all(same(result.model, results[0].model) for result in results)
    assert results[0].report.loss_after < 0.8 * results[0].report.loss_before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("support", ["fixed", "moving"])
def test_narrow_models(dtype, support):
    model = build(12, 24, 16, 4).to(dtype)
    start = cut(model)
    result = feta.refine(start.model, model, X, feta.Refinement(200, support, learning_rate=3e-3, loss="mse"))
    assert {p.dtype for p in result.model.parameters()} == {dtype}
    assert holds(result.model, result.masks)
    assert [int(m.sum()) for m in result.masks.values()] == [int(m.sum()) for m in start.masks.values()]

    @torch.no_grad()
    def far(other: nn.Module) -> float:
        return float((other.float()(X) - copy.deepcopy(model).float()(X)).norm())

    assert far(result.model) < 0.8 * far(start.model)


def test_four_rows_are_enough():
    model = build(12, 24, 4)
    report = feta.refine(cut(model).model, model, X[:4], SHORT).report
    assert report.steps == 60
    assert report.loss_after <= report.loss_before


# The judge


def judge(held: Any, model: nn.Module, kind: Any = "mse", mixing: Mixing | None = None) -> Judge:
    mixing = Mixing(shift=0.0) if mixing is None else mixing
    return Judge(Inputs(held), Original(model, CPU, torch.float32), Match(kind), mixing)


@torch.no_grad()
def test_few_rows_are_judged_with_mixtures_of_them():
    model, other, held = build(12, 24, 4), build(12, 4), X[:20]
    found = judge(held, model)
    whole = torch.cat(found.held)
    assert len(whole) >= 512
    assert torch.equal(whole[:20], held)
    # Of linear networks outputs on mixtures are mixtures: between the least and the largest of those on rows.
    linear = nn.Linear(12, 1)
    outputs = linear(whole)
    assert outputs.min() >= linear(held).min() - 1e-5
    assert outputs.max() <= linear(held).max() + 1e-5
    assert len(whole.unique(dim=0)) > 480
    assert found(other) == pytest.approx(float((other(whole) - model(whole)).square().mean()), rel=1e-5)
    assert judge(held, model)(other) == found(other)  # the same every time


@torch.no_grad()
@pytest.mark.parametrize("held", [X[:20].repeat(26, 1), X[:20]], ids=["many", "no mixing"])
def test_many_rows_are_judged_alone(held):
    model, other = build(12, 24, 4), build(12, 4)
    found = judge(held, model, mixing=Mixing(shift=0.0) if len(held) > 512 else Mixing(0.0, 0.0))
    assert torch.equal(torch.cat(found.held), held)
    assert found(other) == pytest.approx(float((other(held) - model(held)).square().mean()), rel=1e-5)


@torch.no_grad()
def test_positions_of_texts_are_answers():
    ids = torch.randint(0, 30, (60, 9))
    found = judge({"input_ids": ids}, Words(), "kl")
    assert sum(len(batch["input_ids"]) for batch in found.held) == 60  # 540 answers
    fewer = judge({"input_ids": ids[:40]}, Words(), "kl")  # 360
    assert sum(len(batch["input_ids"]) for batch in fewer.held) > 40


@torch.no_grad()
def test_rounding_makes_no_distance_less_than_nothing(monkeypatch):
    found = judge(X[:20], model := build(12, 24, 4))
    for far, told in ((-1e-9, 0.0), (2.0, 2.0)):
        monkeypatch.setattr(Match, "__call__", lambda *_, far=far, **__: torch.tensor(far))
        assert found(model) == told
    monkeypatch.setattr(Match, "__call__", lambda *_, **__: torch.tensor(torch.nan))
    assert math.isnan(found(model))


def test_outputs_that_are_too_many_are_not_kept(monkeypatch):
    model, other = build(12, 24, 4), build(12, 4)
    kept = judge(X, model)
    monkeypatch.setattr(fitting, "KEPT", 10)
    again = judge(X, model)
    assert (kept.targets is None, again.targets is None) == (False, True)
    assert kept(other) == again(other)


@pytest.mark.parametrize("key", ["attention_mask", "src_key_padding_mask", "key_padding_mask"])
def test_padding_is_left_out_whatever_its_mask_is_called(key):
    ids, padded = torch.randint(0, 30, (6, 9)), torch.arange(9) >= 5
    mask = (~padded if key == "attention_mask" else padded).repeat(6, 1)
    model = Around(nn.Embedding(30, 4), lambda table, ids, **others: table(ids))
    _, keep = targets(Original(model, torch.device("cpu"), torch.float32).outputs, {"ids": ids, key: mask})
    assert torch.equal(keep, ~padded.repeat(6, 1))


def test_a_callback_that_raises_leaves_no_hook_behind():
    before, model = len(_LIVE), build(12, 24, 4)

    def stop(point: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feta.refine(model, copy.deepcopy(model), X, steps=50, masks={"0": model[0].weight > 0}, callback=stop)
    assert len(_LIVE) == before
