"""The result beside the original on held-out samples, its page, what notebooks show of it, and progress."""

import dataclasses
import math
import warnings

import pytest
import torch
from torch import nn

import feta
import nets
from feta.calibration.inputs import Inputs
from feta.engine import compare, recipe
from feta.engine.finish import PruneWarning, warn_of
from feta.errors import FileError

X = torch.randn(240, 12, generator=torch.Generator().manual_seed(1))
SCORES = feta.Settings(loss="kl")  # untrained networks do not look as if they scored classes
EVIL = "<script>alert(1)</script>"


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to how far the outputs vary over the samples."""
    return float((found - expected).norm() / (expected - expected.mean(0)).norm())


def held_rows() -> torch.Tensor:
    """The samples that prune holds out, as they are given."""
    return torch.cat(list(Inputs(X).split()[1]))


@pytest.mark.parametrize("at_once", [1, 2**22])
def test_held_out_outputs_are_compared_with_the_originals(monkeypatch, at_once):
    monkeypatch.setattr(compare, "COMPARED", at_once)
    model = nets.mlp(12, 20, 16, 4)
    result = feta.prune(model, X, 0.8, "threshold", settings=SCORES)
    one, other = (net.double()(held_rows().double()).detach() for net in (model, result.model))
    held, same = result.report.held, int((one.argmax(1) == other.argmax(1)).sum())
    one, other = (scores - scores.mean(1, keepdim=True) for scores in (one, other))
    assert held.samples == len(held_rows())
    assert held.error == pytest.approx(error_of(other, one), rel=1e-5)
    assert held.agreement == pytest.approx(same / len(one))
    assert 0 < held.agreement < 1
    assert f"held-out samples: the same answer for {same} of 24" in repr(result)  # too few for a percentage


def test_what_all_scores_of_a_sample_have_in_common_is_no_error():
    """Cross-entropy, and so a fit to answers, does not see it."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.shift = nets.mlp(12, 20, 16, 4), nn.Linear(12, 1)

        def forward(self, x):
            return self.net(x) + self.shift(x)

    share, plain = {"shift": 0.9, "net.fc1": 0.0}, feta.Settings(loss="mse")
    assert feta.prune(Shifted(), X, share, "threshold", settings=SCORES).report.held.error < 1e-6
    assert feta.prune(Shifted(), X, share, "threshold", settings=plain).report.held.error > 0.01


def test_the_model_is_compared_as_it_is_used_and_left_in_its_mode():
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Dropout(0.9), nn.Linear(20, 4)).train()
    result = feta.prune(model, X, 0.0, "threshold")
    assert result.report.held.error == 0
    assert result.model.training


def test_outputs_that_are_no_scores_have_an_error_alone():
    """One output, a table of them, and outputs whose largest says nothing, as of a regression."""
    table = nn.Sequential(nets.mlp(12, 20, 16, 4), nn.Unflatten(1, (2, 2)))
    for model, settings in ((nets.mlp(12, 20, 16, 1), None), (table, SCORES), (nets.mlp(12, 20, 16, 2), None)):
        held = feta.prune(model, X, 0.8, "threshold", settings=settings).report.held
        assert held.agreement is None
        assert held.error > 0


@pytest.mark.parametrize("width", [5, 24, 48])  # as many as there are held-out samples, by chance
def test_answers_that_are_apart_for_each_sample_are_not_compared(width):
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nets.mlp(12, 20, 16, width)

        def forward(self, x):
            return [{"boxes": boxes} for boxes in self.net(x)]

    assert feta.prune(Detector(), X, 0.5, "threshold").report.held is None


@pytest.mark.parametrize("always", [1990.0, -1e9, torch.finfo(torch.float32).min, -math.inf])
@pytest.mark.parametrize("settings", [SCORES, None])
def test_what_outputs_always_are_says_nothing(always, settings):
    """An offset of one output, as of years, and classes that are masked."""

    class Always(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nets.mlp(12, 20, 16, 4)

        def forward(self, x):
            return torch.cat([self.net(x), torch.full_like(x[:, :1], always)], 1)

    model = Always()
    held = feta.prune(model, X, 0.9, "threshold", layers=["net.fc2"], settings=settings).report.held
    plain = feta.prune(model.net, X, 0.9, "threshold", layers=["fc2"], settings=feta.Settings(loss="mse")).report.held
    assert held.error == pytest.approx(plain.error, rel=0.3 if settings else 1e-4)  # the mean is over one score more


def test_outputs_that_are_always_the_same_are_beside_their_size():
    model = nets.mlp(12, 20, 16, 4)
    with pytest.warns(PruneWarning, match="only 1 differ"):
        report = feta.prune(model, X[:1].repeat(40, 1), 0.9, "alps").report
    assert report.held.error < 1.5
    assert [layer.status for layer in report.layers] == ["few-rows", "few-rows"]


def test_outputs_that_are_cut_to_the_longest_sample_are_compared():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nets.mlp(6, 8, 4)

        def forward(self, x, lengths):
            return self.net(x[:, : int(lengths.max())])

    data = {"x": X.view(40, 12, 6), "lengths": 1 + torch.arange(40) % 12}
    assert feta.prune(Cut(), data, 0.5, "threshold").report.held.error > 0


@pytest.mark.parametrize("effort", ["fast", "default"])
@pytest.mark.parametrize("width", [1, 4])
def test_outputs_of_any_length_are_compared(monkeypatch, effort, width):
    monkeypatch.setattr(recipe, "STEPS", 80)

    class Tags(nn.Module):
        """A value, or some, for each token, the tokens last."""

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, width))

        def forward(self, x):
            return self.net(x).transpose(1, 2).squeeze(1)

    texts = [torch.randn(20, length, 6) for length in (5, 6, 7, 8) * 5]
    assert 0 < feta.prune(Tags(), texts, 0.5, effort=effort).report.held.error < 1


def test_outputs_without_a_number_have_no_error():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nets.mlp(12, 20, 16, 4)

        def forward(self, x):
            return self.net(x).where(x[:, :1] < 1, math.nan)

    with pytest.warns(PruneWarning, match="not finite"):
        assert feta.prune(Broken(), X, 0.5, "threshold").report.held.error is None


def test_padding_is_no_output():
    class Texts(nn.Module):
        """Outputs for each position, large ones for padding."""

        def __init__(self):
            super().__init__()
            self.net = nets.mlp(6, 8, 4)

        def forward(self, x, attention_mask):
            return self.net(x * (100 - 99 * attention_mask)[..., None])

    model, x = Texts(), X.view(40, 12, 6)
    mask = (torch.arange(12) <= torch.arange(40)[:, None] % 12).long()
    result = feta.prune(model, {"x": x, "attention_mask": mask}, 0.5, "threshold")
    rows = torch.cat(list(Inputs(torch.arange(40)[:, None]).split()[1]))[:, 0]
    one, other = (net(x[rows], mask[rows])[mask[rows].bool()].detach() for net in (model, result.model))
    assert result.report.held.error == pytest.approx(error_of(other, one), rel=1e-4)


def test_without_samples_to_hold_out_nothing_is_said():
    model = nets.mlp(12, 20, 16, 4)
    assert feta.prune(model, None, 0.8, "threshold").report.held is None
    assert feta.prune(model, X[:3], 0.8, "threshold").report.held is None


def test_outputs_that_overflow_are_said_and_written_as_json():
    class Explode(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(12, 20), nn.Linear(20, 4)

        def forward(self, x):
            return self.two(torch.relu(self.one(x))) * 1e38 * 10

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = feta.prune(Explode(), X, 0.5, "threshold").report
    assert report.held.error is None
    assert "not finite" in repr(report)
    report.to_json()


def test_the_page_of_a_result(tmp_path):
    result = feta.prune(
        nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4)), X, 0.8, "threshold", settings=SCORES
    )
    result.save_report(tmp_path / "deep" / "page.html", network=EVIL)
    result.save_report(str(tmp_path / "scored.html"), accuracy=(98.5, 97.25))
    page = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, pruned" in page
    assert "same answer as the original" in page
    assert "97.25 %" in (tmp_path / "scored.html").read_text(encoding="utf-8")
    with pytest.raises(FileError, match="cannot write"):
        result.save_report(tmp_path)


def test_only_what_a_softmax_does_not_see_is_left_out():
    """Not of one output, nor of probabilities, whose mean is the same for all."""
    one, soft = nets.mlp(12, 20, 16, 1), nn.Sequential(nets.mlp(12, 20, 16, 4), nn.Softmax(-1))
    for model, settings in ((one, SCORES), (soft, None)):
        result = feta.prune(model, X, 0.9, "threshold", settings=settings)
        before, after = (net.double()(held_rows().double()).detach() for net in (model, result.model))
        assert result.report.held.error == pytest.approx(error_of(after, before), rel=1e-4)


class Unfittable(nn.Module):
    """Outputs without gradients."""

    def __init__(self, answers=False):
        super().__init__()
        self.net, self.answers = nets.mlp(12, 20, 16, 4), answers

    def forward(self, x):
        with torch.no_grad():
            return self.net(x).argmax(1).float() if self.answers else self.net(x)


@pytest.mark.parametrize("answers", [False, True])
def test_a_network_that_could_not_be_fitted_is_said(answers):
    with pytest.warns(
        feta.PruneWarning, match=r"not fitted as a whole; its outputs have no gradient, as those of a f"
    ):
        report = feta.prune(Unfittable(answers), X, 0.6).report
    assert report.refinement is None


def test_where_nothing_is_lost_nothing_is_fitted():
    model = nets.mlp(12, 20, 16, 4)
    with torch.no_grad():
        model.fc1.weight[:, 6:] = 0
    many = torch.randn(1200, 12, generator=torch.Generator().manual_seed(1))
    report = feta.prune(model, many, {"fc1": 0.5, "fc2": 0.0}, settings=SCORES).report
    assert [stage.name for stage in report.stages] == ["layer by layer", "fits of the whole network"]
    assert report.stages[1].message == "left out, for the outputs are within 0.2 % of the original's"
    assert report.refinement is None


def test_the_worst_layer_is_the_one_that_is_named():
    report = feta.prune(nets.mlp(12, 20, 16, 4), X, 0.3, "threshold").report
    told = zip(report.layers, ("few-rows", "fell-back"), strict=True)
    layers = tuple(dataclasses.replace(layer, status=status, message=status) for layer, status in told)
    with pytest.warns(feta.PruneWarning, match="2 of 2 layers need a look; fc2: fell-back; fc1: few-rows$"):
        warn_of(dataclasses.replace(report, layers=layers), None)


def test_more_zeros_than_were_asked_for_are_said():
    model = nets.mlp(12, 20, 16, 4)
    with torch.no_grad():
        for layer in (model.fc1, model.fc2):
            layer.weight[:, ::2] = 0
    report = feta.prune(model, X, 0.2, "threshold").report
    assert report.sparsity > 0.4
    assert "20 % zeros were asked for: the others came of themselves" in str(report)
    assert "were asked for" not in str(feta.prune(model, X, 0.6, "threshold").report)


def test_zeros_that_a_pattern_rounds_up_did_not_come_of_themselves():
    report = feta.prune(nets.mlp(12, 5, 16, 4), X, 0.75, "threshold", pattern="neurons").report
    assert report.sparsity > 0.755
    assert "were asked for" not in str(report)


def test_the_error_of_a_layer_outlives_the_fit(monkeypatch):
    monkeypatch.setattr(recipe, "STEPS", 200)
    model = nets.mlp(12, 20, 16, 4)
    alone = feta.prune(model, X, 0.6, effort="fast").report
    report = feta.prune(model, X, 0.6, effort="default").report
    assert report.refinement is not None
    assert [layer.relative_error for layer in report.layers] == [None, None]
    assert [layer.pruned_error for layer in report.layers] == [layer.relative_error for layer in alone.layers]


def test_what_notebooks_show_is_escaped():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(EVIL, nn.Linear(12, 8))
            self.last = nn.Linear(8, 4)

        def forward(self, x):
            return self.last(getattr(self, EVIL)(x).relu())

    result = feta.prune(Net(), X, 0.8, "threshold")
    shown = result._repr_html_()
    assert shown == result.report._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "<details><summary>1 layer</summary>" in shown


@pytest.mark.parametrize("show", [True, False])
def test_progress(monkeypatch, capsys, show):
    monkeypatch.setattr("feta.progress.SELDOM", 0.0)
    seen = []
    feta.prune(nets.mlp(12, 20, 16, 4), X, 0.8, "alps", progress=show, callback=seen.append)
    said = capsys.readouterr().err.splitlines()
    assert {event.kind for event in seen} >= {"start", "done"}
    assert bool(said) is show
    if show:
        assert said[-1].startswith("feta: pruning: 2 of 2, 0:0")
        assert any("fc" in line or "1 of 2" in line for line in said)


def test_progress_of_a_fit_says_steps_and_loss(monkeypatch, capsys):
    monkeypatch.setattr("feta.progress.SELDOM", 0.0)
    monkeypatch.setattr(recipe, "STEPS", 200)
    feta.prune(nets.mlp(12, 20, 16, 4), X, 0.8, progress=True)
    assert "fitting the whole network, steps " in capsys.readouterr().err
