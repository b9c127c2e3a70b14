"""A report as data and as a table."""

import json
from dataclasses import replace

import pytest

from feta.report import Held, LayerReport, PruneReport, RefineReport, Size, Skipped, StageReport


@pytest.fixture
def report():
    layers = (
        LayerReport("fc1", (60, 784), 4704, 0.9, 0.4105, 0.123, stats={"passes": 3}),
        LayerReport("fc2", (60, 60), 360, 0.9, None, 0.0456, "damped", "H was singular"),
    )
    refitted = {"softmax": "damped"}
    return PruneReport("threshold", {"fc*": 0.9}, 0.9, 0.1686, "cpu", 3, {"ridge": 0.1}, layers, refitted)


STAGES = (
    StageReport("layer by layer", 1.5, None, True, "too few samples"),
    StageReport("survivors fitted", 2.25, 0.01234567, False, measure="kl"),
)


def test_json_holds_every_field(report):
    report = replace(report, effort="default", stages=STAGES, held=Held(50, 0.25, 0.9))
    back = json.loads(report.to_json())
    layers = [{**layer, "shape": tuple(layer["shape"])} for layer in back.pop("layers")]
    back["skipped"] = tuple(Skipped(**entry) for entry in back["skipped"])
    back["held"] = Held(**back["held"])
    back["stages"] = tuple(StageReport(**entry) for entry in back["stages"])
    again = PruneReport(**back, layers=tuple(LayerReport(**layer) for layer in layers))
    assert again == report


def test_one_is_not_told_as_many(report):
    one = replace(report, layers=report.layers[:1], held=Held(1, 0.25, 0.9))
    assert "of the weights of 1 layer zero" in one.headline()[0]
    assert "on 1 held-out sample: " in one.headline()[-1]
    assert "<summary>1 layer</summary>" in one._repr_html_()


def test_repr_is_a_table_with_the_messages_below(report):
    title, header, first, second, note, refit = repr(report).splitlines()
    assert title == "threshold: 90.00 % of the weights of 2 layers zero, 0.17 s"
    assert header.split("  ")[0] == "layer"
    assert first.split() == ["fc1", "60×784", "4,704", "90.00", "%", "0.410", "0.123", "ok"]
    assert second.split() == ["fc2", "60×60", "360", "90.00", "%", "–", "0.046", "damped"]
    assert header.index("status") == first.index("ok") == second.index("damped")
    assert note == "fc2: H was singular"
    assert refit == "softmax: its refit ended as damped"


def test_layers_with_one_message_are_named_together(report):
    many = tuple(replace(report.layers[0], name=f"fc{i}", status="few-rows", message="too few") for i in range(5))
    alone = tuple(replace(report.layers[0], name=f"up{i}", message=f"message {i}") for i in range(6))
    lines = repr(replace(report, layers=(*many, *alone))).splitlines()
    assert "fc0, fc1, fc2 and 2 more: too few" in lines
    assert "up3: message 3" in lines
    assert "2 more layers have something to say (2 ok): see report.layers" in lines


def test_stages_are_said_with_an_arrow_at_the_one_that_is_kept(report):
    *_, title, first, second = repr(replace(report, stages=STAGES)).splitlines()
    assert title.endswith("; how far the outputs are from the original's, by KL divergence:")
    assert first == "→ layer by layer, 1.50 s (too few samples)"
    assert second == "  survivors fitted, 0.0123 from the original, 2.25 s"


def test_the_measure_is_said_and_a_fit_that_is_a_stage_is_not_told_twice(report):
    fit = RefineReport(1.0, 40, 0.3, 0.0123, (), "steps", "kl", "cpu", 0, 1e-3, "fixed")
    title = repr(replace(report, stages=STAGES, refinement=fit)).splitlines()[-3]
    assert title.endswith("how far the outputs are from the original's, by KL divergence:")
    alone = repr(replace(report, refinement=fit)).splitlines()[-1]
    assert alone == "refined: KL divergence of the outputs 0.300 → 0.0123, 40 steps, 1.00 s"
    assert "difference of probabilities" in repr(replace(fit, measure="probabilities"))
    assert repr(replace(fit, stopped="seconds")).endswith("1.00 s, its time limit")


def test_errors_of_layers_that_were_fitted_since_are_those_they_were_pruned_with(report):
    layers = tuple(replace(layer, relative_error=None, pruned_error=0.25) for layer in report.layers)
    shown = repr(replace(report, layers=layers, held=Held(50, 0.25, 0.9)))
    assert "0.250" in shown.splitlines()[3]
    assert "\nerrors: as the layers were pruned, before the network was fitted as a whole\n" in shown
    assert "on data the network never saw expect more changes" in shown
    assert "errors: " not in repr(replace(report, held=Held(50, 0.25, 0.9)))


def test_without_a_distance_the_stages_promise_none(report):
    title = repr(replace(report, stages=STAGES[:1])).splitlines()[-2]
    assert title == "stages, the arrow at the one that is kept:"


def test_a_spared_layer_that_holds_much_comes_with_the_cure(report):
    left = (Skipped("out", "Linear", 100, "its outputs are the model's"), Skipped("up", "RNN", 400, "recurrent"))
    many = replace(report, compensated={}, target_sparsity=0.9, skipped=left, before=Size(1000, 1000, None, 4000))
    out, up = many.notes()[-2:]
    assert out == "left as it is: out (10.0 % of all): its outputs are the model's; layers='*' prunes that too"
    assert up == "left as it is: up (40.0 % of all): recurrent"
    for other in (replace(many, before=Size(1001, 1001, None, 4004)), replace(many, target_sparsity={"fc*": 0.9})):
        assert not any("layers='*'" in note for note in other.notes())


def test_the_headline_says_what_became_of_the_whole_model(report):
    small = replace(report, before=Size(596, 596, 576, 2380), after=Size(596, 468, 320, 1920))
    large = replace(report, before=Size(1_000_000, 1_000_000, None, 4_000_000), after=Size(1_000_000, 5, None, 20))
    assert small.headline()[1] == (
        "whole model: 21.48 % of 596 parameters zero, 576 → 320 multiply-adds in prunable layers, "
        "2.38 kB → 1.92 kB as values and bit masks"
    )
    assert large.headline()[1] == "whole model: 100.00 % of 1 M parameters zero, 4 MB → 20 B as values and bit masks"


def test_json_refuses_what_is_no_json():
    bad = PruneReport("m", 0.9, 0.9, float("nan"), "cpu", 0, {}, ())
    with pytest.raises(ValueError, match="not JSON compliant"):
        bad.to_json()


def test_a_name_stays_on_its_line(report):
    evil = replace(
        report, layers=(replace(report.layers[0], name="a\n\x1b[2J\u202e" + "x" * 10**6), *report.layers[1:])
    )
    assert repr(evil).count("\n") == repr(report).count("\n")
    assert repr(evil).replace("\n", "").isprintable()
    assert len(repr(evil)) < 10**4


def test_of_many_layers_the_table_shows_the_first_and_the_last(report):
    many = tuple(LayerReport(f"layer{n}", (2, 3), 1, 0.5, 0.1, 0.1) for n in range(100))
    lines = repr(replace(report, layers=many, compensated={}, segments=2)).splitlines()
    assert len(lines) == 2 + 24
    assert [lines[2], lines[-1]] == [line for line in lines if line.split()[0] in ("layer0", "layer99")]
    (gap,) = [line for line in lines if line.startswith("…")]
    shown = sum(line.startswith("layer") for line in lines[2:])
    assert gap == f"… {100 - shown} more: report.layers"
    few = repr(replace(report, layers=many[:24], compensated={}, segments=2))
    assert "…" not in few


def test_what_notebooks_show(report):
    shown = replace(report, held=Held(50, 0.25, 0.9), before=Size(9, 9, 9, 9), after=Size(9, 3, 3, 3))._repr_html_()
    for word in ("threshold: 90.00 %", "90.0 %", "<td>fc2</td>", "H was singular", "<summary>2 layers</summary>"):
        assert word in shown
    assert shown.count("<div") == shown.count("</div>")
    assert "<th>before</th>" not in shown  # the cells say it, where it is so
