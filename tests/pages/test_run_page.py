"""The page of a run: what it says, that names stay words, and how it looks in a browser."""

import re
from dataclasses import replace

import pytest
from reports import EVIL, layers, run

from feta.pages.run import CHARTED, five_numbers, run_page
from feta.report import Held, LayerReport, Skipped, StageReport
from reader import Reader


def page(report=None, **more):
    return run_page((report or run()).to_dict() | more)


def test_before_and_after_in_five_numbers():
    told = five_numbers(run().to_dict())
    assert [(after, before) for _, after, before in told] == [
        ("95.0 %", "on 100 held-out samples; relative error of the outputs 0.210"),
        ("88.95 %", "0.00 % before"),
        ("5.66 k", "51.2 k before"),
        ("24 kB", "205 kB before, 8.5× smaller"),
        ("5.06 k", "50.6 k before"),
    ]


def test_accuracy_and_file_go_before_what_the_engine_measured():
    more = {
        "accuracy": {"dense": {"test": 98.16}, "pruned": {"test": 96.5}},
        "file_bytes": {"dense": 4e6, "pruned": 5e5},
    }
    told = five_numbers(run().to_dict() | more)
    assert told[0] == ("test accuracy", "96.50 %", "98.16 % before")
    assert told[3][1:] == ("500 kB", "4 MB before, 8.0× smaller")
    as_large = more | {"file_bytes": {"dense": 4e6, "pruned": 4.1e6}}
    assert five_numbers(run().to_dict() | as_large)[3][1:] == ("4.1 MB", "4 MB before, no smaller")


@pytest.mark.parametrize(
    ("held", "value", "words"),
    [
        (Held(7, 0.5, None), "0.500", "on 7 held-out samples"),
        (Held(7, None, None), "–", "on 7 held-out samples"),
        (Held(8, None, 0.5), "4 of 8", "on 8 held-out samples; outputs not finite"),
        (None, "–", "no samples were held out to measure it on"),
    ],
)
def test_without_labels_held_out_outputs_are_compared(held, value, words):
    assert five_numbers(run(held=held).to_dict())[0][1:] == (value, words)


def test_without_multiply_adds_the_seconds_are_the_fifth():
    one, other = run().before, run().after
    report = run(before=replace(one, multiply_adds=None), after=replace(other, multiply_adds=None))
    assert five_numbers(report.to_dict())[4] == ("seconds to prune", "1.6", "on cpu")
    assert len(five_numbers(run(before=None, after=None).to_dict())) == 3


def test_names_are_cut_after_their_dots():
    assert ">model.<wbr>layers.<wbr>0.<wbr>q_proj</span>" in page(
        run(layers=(LayerReport("model.layers.0.q_proj", (9, 9), 9, 0.9, 0.1, 0.1),))
    )


def test_bars_are_drawn_to_the_largest_of_their_column():
    rects = re.findall(r'<rect class="one" width="([\d.]+)"', page())
    assert list(map(float, rects)) == [50.0, 90.0, 100.0, 100.0, 90.0, pytest.approx(100 * 60 / 784, abs=0.01)]


def test_the_error_of_a_layer_that_was_fitted_since_is_the_one_it_was_pruned_with():
    one = LayerReport("fc1", (4, 5), 2, 0.9, None, 0.1, pruned_error=0.375)
    text = page(run(layers=(one,)))
    assert "0.375" in text
    assert "before the network was fitted as a whole" in text
    assert "before the network was fitted as a whole" not in page()


def test_where_nothing_was_held_out_errors_are_of_the_fitted_samples():
    assert "outputs on held-out samples, relative" in page()
    few = page(run(held=None, judged_by=0))
    assert "outputs on the samples that were fitted, relative" in few
    assert "held-out samples come from" not in few


def test_the_first_number_has_one_label_with_labels_or_without():
    for held in (Held(100, 0.2, 0.9), None):
        assert five_numbers(run(held=held).to_dict())[0][0] == "same answer as the original"


def test_settings_are_said_in_words():
    report = replace(run(), target_sparsity={"fc1": 0.95, "*": 0.9}, options={"outer": None, "exact": True})
    words = Reader(page(report)).words
    assert "null" not in words
    for said in ("fc1 95 %, * 90 %", "feta: outer", "automatic", "yes"):
        assert said in words


def test_stages_without_a_message_have_no_column_for_it():
    assert 'data-label="how"' not in page()
    said = (*run().stages, StageReport("survivors fitted", 1.0, 0.01, False, "40 steps"))
    assert '<td class="left" data-label="how">–</td>' in page(run(stages=said))


def test_of_many_layers_those_that_lost_most_are_shown_first():
    many = layers(*["ok"] * 100)
    text = page(run(layers=many))
    names = re.findall(r'<span class="name">(.*?)</span>', text.replace("<wbr>", ""))
    assert names[:CHARTED] == [layer.name for layer in many[: -CHARTED - 1 : -1]]
    assert names[CHARTED:] == [layer.name for layer in many]
    assert "All 100 layers, in order" in text


def test_what_was_skipped_and_what_needs_a_look():
    skipped = tuple(Skipped(f"e{n}", "Embedding", 1281, "a table that is looked up") for n in range(4))
    report = run(layers=layers("ok", "fell-back", message="thresholded instead"), skipped=skipped)
    words = Reader(page(replace(report, compensated={"head": "damped"}))).words
    for said in ("e0, e1, e2 and 1 more", "a table that is looked up", "5,124", "10.0 %", "thresholded instead"):
        assert said in words
    assert "fell-back: the method did worse" in words
    assert "damped: some inputs say the same" in words
    assert "To be looked at" not in page(run(layers=layers("ok")))


def test_names_cannot_inject_markup():
    bad = LayerReport(EVIL, (4, 5), 2, 0.9, 0.3, 0.1, "poor", EVIL)
    stages, skipped = (StageReport(EVIL, 1.0, None, True, EVIL),), (Skipped(EVIL, EVIL, 9, EVIL),)
    report = run(layers=(bad,), stages=stages, skipped=skipped, batchnorm=EVIL)
    text = page(replace(report, method=EVIL, compensated={EVIL: EVIL}, options={EVIL: EVIL}), network=EVIL)
    assert "<script" not in text
    assert "script" not in dict(Reader(text).tags)
    assert EVIL in Reader(text).words


def test_names_cannot_hide_turn_around_or_go_on_for_ever():
    odd = LayerReport("a\u202eb\x1b[2J\n" + "x" * 10**6, (4, 5), 2, 0.9, 0.3, 0.1)
    text = page(run(layers=(odd,)))
    assert "a\\u202eb\\x1b[2J\\n" in text
    assert not {"\u202e", "\x1b"} & set(text)
    assert len(text) < 50_000


def test_one_file_that_needs_nothing_else():
    text = page()
    assert not re.search(r'https?://|@import|url\(|<script|(src|href)=(?!"data:,")', text)
    assert text == page()
    Reader(text)


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(visit, tmp_path, width, scheme):
    long = LayerReport(
        "transformer." + "h" * 90 + ".weight", (4, 5), 2, 0.9, 0.3, 0.1, "poor", "prune this layer less"
    )
    (tmp_path / "page.html").write_text(page(run(layers=(*run().layers, long)), network="n" * 99), encoding="utf-8")
    browser = visit(tmp_path / "page.html")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        wider = "e => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1"
        assert (
            browser.execute_script(f"return [...document.querySelectorAll('main div')].filter({wider}).length") == 0
        )
        back, size = browser.execute_script(
            "return [getComputedStyle(document.body).backgroundColor, "
            "parseFloat(getComputedStyle(document.querySelector('.bars .name')).fontSize)]"
        )
        assert (back == "rgb(255, 255, 255)") == (scheme == "light")
        assert size >= 13  # as large on a phone
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
