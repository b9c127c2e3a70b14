"""What to try next: each sentence for its cause, with numbers that follow from the report."""

from dataclasses import replace

import pytest
from reports import layers, run

from feta.engine.judge import Judged, few_rows
from feta.pages.advice import CURES, advice, answers_lost, lower
from feta.pages.document import listed
from feta.problem import Status
from feta.report import Held, Skipped, StageReport


def told(report, **more):
    return " ".join(advice(report.to_dict() | more))


def test_every_status_has_a_cure():
    assert set(CURES) == set(Status) - {Status.OK}


@pytest.mark.parametrize("message", ["30 rows for 64 inputs: too few; 256 samples would do", "…; about 256 would do"])
def test_how_many_samples(message):
    report = run(
        layers=(*layers("ok", "few-rows", message=message), *layers("few-rows", message="90 samples would do"))
    )
    assert (
        advice(report.to_dict())[0] == "Give about 256 samples: there are too few for block.1.dense, block.0.dense."
    )


def test_the_number_is_found_in_what_the_judge_says():
    class Few:
        lane = type("Lane", (), {"inputs": type("Inputs", (), {"count": 10})})
        n_rows = 10

    import feta.engine.judge as judge

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "LayerStream", lambda *_: Few)
        frame = type("Frame", (), {"W": [0] * 64, "view": None, "through": None, "group": 0})
        enough = type("Frame", (frame,), {"W": [0] * 5})
        many = Judged(10, 1000, 10)
        asked = [(frame, None, many), (enough, 3.0, many), (enough, None, Judged(10, 0, 10))]
        asked += [(enough, None, Judged(20, 2, 20)), (enough, None, Judged(300, 0, 1))]
        said = [few_rows(Few, *each) for each in asked]
    for message in said:
        assert "Give about" in told(run(layers=layers("few-rows", message=message)))


def test_without_data():
    (layer,) = layers("ok")
    report = run(layers=(type(layer)(layer.name, layer.shape, 20, 0.9, None, 0.1),), held=None, effort=None)
    assert "Give data" in told(report)
    assert "effort" not in told(report)


def test_layers_that_fell_back_are_to_be_pruned_less():
    report = run(layers=layers("ok", "fell-back"))
    assert "Prune block.1.dense less" in told(report)
    assert "sparsity={'block.1.dense': 0.8, '*': 0.9}" in told(report)
    assert "less" not in told(run(layers=layers("ok", "fell-back"), held=Held(1000, 0.1, 1.0)))


def test_a_lower_sparsity_where_much_was_lost_and_a_higher_one_where_nothing_was():
    assert "Prune less: 5.0 % of the answers were lost at 0.9; a sparsity of 0.8" in told(run())
    assert "a sparsity of 0.95" in told(run(held=Held(1000, 0.1, 0.999)))
    scores = {"dense": {"test": 90.0}, "pruned": {"test": 81.0}}
    assert answers_lost(run().to_dict() | {"accuracy": scores}) == pytest.approx(0.1)
    assert "Prune less: 10.0 %" in told(run(), accuracy=scores)
    assert lower(0.4) == 0.2  # never none at all, which would not be to prune less
    held = Held(1000, 0.1, 0.9)
    report = run(held=held).to_dict() | {"target_sparsity": 0.5}
    assert "a sparsity of 0.25 takes half as many weights." in " ".join(advice(report))


def test_more_is_advised_only_where_much_says_so():
    """One change in 40 samples is 2.5 %: none among them says little."""
    few, many = (told(run(held=Held(count, 0.1, 1.0))) for count in (100, 300))
    assert "Prune more" not in few
    assert "100 held-out samples with the same answers say too little" in few
    assert "a sparsity of 0.95 may do as well; measure it on data that the network never saw." in many
    scores = {"dense": {"test": 90.0}, "pruned": {"test": 90.0}}
    assert "a sparsity of 0.95 may do as well." in told(run(held=None), accuracy=scores)


def test_a_few_held_out_samples_say_nothing_of_the_answers():
    assert answers_lost(run(held=Held(12, 0.1, 1.0)).to_dict()) is None
    assert "Prune more" not in told(run(held=Held(12, 0.1, 1.0)))


@pytest.mark.parametrize(
    ("effort", "words"),
    [
        (None, "the default effort"),
        ("fast", "the default effort"),
        ("default", "the best effort"),
        ("best", "`feta.retrain`"),
    ],
)
def test_the_next_effort(effort, words):
    stages = tuple(StageReport(name, 1.5, 0.012, True) for name in ("layer by layer", "survivors fitted"))
    assert words in told(run(effort=effort, stages=stages))


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_no_longer_effort_where_nothing_could_be_fitted(effort):
    unfit = StageReport("survivors fitted", 0.1, None, False, "its outputs have no gradient")
    more = {"judged_by": 1} if effort == "fast" else {"stages": (*run().stages, unfit)}
    assert "effort:" not in told(run(effort=effort, **more))


@pytest.mark.parametrize("said", ["500 of 2000 (for want of time)", "no time was left"])
def test_fits_that_were_cut_want_more_seconds(said):
    stages = (StageReport("layer by layer", 1.0, 0.1, True), StageReport("survivors fitted", 1.0, None, False, said))
    assert "Give it more seconds" in told(run(effort="default", stages=stages))


def test_layers_that_were_not_chosen_and_speed():
    left = Skipped("big", "Linear", 20_000, "it was not chosen")
    assert "39.0 % of the parameters" in told(run(skipped=(left,)))
    assert advice(run().to_dict())[-1].startswith("See what it saves on your machine: `feta speed FILE`")


TYPED = {"speed": "feta speed out.safetensors", "retrain": "feta retrain out.safetensors"}


def test_a_run_of_the_command_line_is_told_what_can_be_typed_there():
    (bad,) = layers("poor")
    bad = replace(bad, name="0")
    said = told(run(layers=(bad, *layers("ok"))), typed=TYPED)
    assert "Prune layer 0 less, where up to 90.0 % zeros were too many: `--sparsity '0=0.8,*=0.9'`." in said
    assert "Take the default effort (`--effort default`)" in said
    assert said.endswith("See what it saves on your machine: `feta speed out.safetensors`.")
    stages = tuple(StageReport(name, 1.5, 0.012, True) for name in ("layer by layer", "survivors fitted"))
    assert "`feta retrain out.safetensors` goes on" in told(run(effort="best", stages=stages), typed=TYPED)


def test_code_is_marked_on_the_page_and_names_stay_words():
    assert (
        listed(["see `feta speed <x>`"]) == '<ul class="list"><li>see <code>feta speed &lt;x&gt;</code></li></ul>\n'
    )
    evil = tuple(replace(layer, name="`" + "x" * 2000) for layer in layers("poor", "few-rows"))
    for more in ({}, {"typed": TYPED}):
        one, other = (
            listed(advice(run(layers=names).to_dict() | more)) for names in (evil, layers("poor", "few-rows"))
        )
        assert one.count("<code>") == other.count("<code>") > 1
