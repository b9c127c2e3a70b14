"""Progress: a bar on a terminal, in a notebook an output that is renewed, lines now and then elsewhere."""

import io
import sys
from types import SimpleNamespace

import pytest

from feta import progress
from feta.engine.settings import PruneEvent, on_bar
from feta.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.value)
    return now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_pipe_a_line_now_and_then(clock, capsys):
    with Progress("pruning", total=40) as bar:
        for step in range(36):
            clock.value += 1
            bar.update(step + 1, note=f"fc{step}\x1b[31m")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "feta: pruning: 10 of 40, 0:10, fc9\\x1b[31m"  # as words that no terminal obeys
    assert len(lines) == 3


def test_a_short_call_says_nothing_on_a_pipe(clock, capsys):
    with Progress("pruning") as bar:
        bar.update(1, 2)
        clock.value += 9
        bar.update(2)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_one_line_is_drawn_over_itself(clock, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "60")
    with Progress("pruning", total=4) as bar:
        bar.update(1)  # too soon to be drawn
        clock.value += 3700
        bar.update(2, note="x" * 80)
    drawn = screen.getvalue().split("\r")
    assert [line.count("█") for line in drawn] == [0, 0, 10, 10]
    assert drawn[2].startswith("██████████░░░░░░░░░░ pruning: 2 of 4, 1:01:40, xxx")
    assert all(len(line.replace("\x1b[K", "").strip()) < 60 for line in drawn)
    assert screen.getvalue().endswith("\n")


def test_in_a_notebook_one_output_is_renewed(clock, monkeypatch, capsys):
    outputs = []
    handle = SimpleNamespace(update=lambda data, raw: outputs.append(data))
    shown = SimpleNamespace(display=lambda data, raw, display_id: outputs.append(data) or handle)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    with Progress("pruning", total=2) as bar:
        clock.value += 1
        bar.update(1, note="<b>")
    assert len(outputs) == 3
    assert '<progress value="1" max="2">' in outputs[-1]["text/html"]
    assert "&lt;b&gt;" in outputs[-1]["text/html"]
    assert outputs[-1]["text/plain"] == "pruning: 1 of 2, 0:01, <b>"
    assert capsys.readouterr() == ("", "")


def test_nothing_where_it_was_not_asked_for(clock, monkeypatch):
    screen, seen = Terminal(), []
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress("pruning", show=False) as bar:
        clock.value += 60
        bar.update(1, 2)
        assert bar.followed(None, dict) is None
        assert bar.followed(seen.append, dict) == seen.append
    assert screen.getvalue() == ""


def test_the_users_callback_is_told_too(clock):
    seen = []
    with Progress("pruning") as bar:
        bar.followed(seen.append, lambda event: {"completed": event, "total": 9})(4)
    assert (seen, bar.done, bar.total) == ([4], 4, 9)


def test_steps_of_a_layer_are_told_in_words():
    assert on_bar(PruneEvent("start", "fc1", 0, 2))["note"] == "fc1"
    assert on_bar(PruneEvent("step", "fc1", 0, 2, "retarget"))["note"] == "fc1: fitting the weights that stay"
    assert on_bar(PruneEvent("step", "fc1", 0, 2, "of its own"))["note"] == "fc1: of its own"


def test_a_loss_of_nothing_has_no_sign():
    event = PruneEvent("step", "", 2, 2, "refine", {"steps": 0.0, "loss": -0.0})
    assert on_bar(event)["note"] == "fitting the whole network, steps 0, loss 0"
