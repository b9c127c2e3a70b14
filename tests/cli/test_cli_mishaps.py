"""Whatever happens, the command line answers with one line: no traceback, and nothing that steers the terminal."""

import re
import sys
from pathlib import Path

import pytest
import torch
from own_models import CODE

import feta
import feta.cli
from feta.cli.mishap import UNFORESEEN
from feta.files import sparse_file


@pytest.fixture
def own(monkeypatch):
    Path("own_net.py").write_text(CODE)
    monkeypatch.syspath_prepend(".")
    yield
    sys.modules.pop("own_net", None)


def break_app(monkeypatch, error: BaseException) -> None:
    def broken(words: list[str]) -> None:
        raise error

    monkeypatch.setattr(feta.cli, "app", broken)


@pytest.mark.parametrize(("resume", "on"), [("", ""), (" --resume", "; the same command goes on where it stopped")])
def test_who_interrupts_is_told_how_it_goes_on(run, monkeypatch, resume, on):
    break_app(monkeypatch, KeyboardInterrupt())
    answer = run(f"prune a -o b{resume}")
    assert (answer.code, answer.err) == (130, f"feta: interrupted{on}\n")
    break_app(monkeypatch, feta.cli.Told(143))
    answer = run(f"prune a -o b{resume}")
    assert (answer.code, answer.err) == (143, f"feta: interrupted{on}\n")


def test_what_nobody_foresaw_is_one_line_and_a_report(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    break_app(monkeypatch, ZeroDivisionError("over \x1b[31m\nzero"))
    answer = run("info a\u00e9")
    assert (answer.code, answer.out, answer.err.count("\n")) == (UNFORESEEN, "", 1)
    said = r"feta: ZeroDivisionError: over \\x1b\[31m zero; this is a fault of feta's, its report is in (.+)\n"
    report = Path(re.fullmatch(said, answer.err)[1])
    text = report.read_text(encoding="utf-8")
    assert report.parent == tmp_path
    assert "feta 'info' 'aé'" in text
    assert "Traceback (most recent call last)" in text
    assert "in broken" in text


def test_a_report_that_cannot_be_written_is_no_second_mishap(run, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    break_app(monkeypatch, ZeroDivisionError("zero"))
    answer = run("info x")
    assert answer.code == UNFORESEEN
    assert "run again with FETA_DEBUG=1" in answer.err


def test_debugging_shows_the_traceback(run, monkeypatch):
    monkeypatch.setenv("FETA_DEBUG", "1")
    break_app(monkeypatch, ZeroDivisionError("zero"))
    with pytest.raises(ZeroDivisionError):
        run("info x")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("info " + "x" * 300, "x" * 50),
        ("info a\x1b[31mb", "must hold no control characters, got 'a\\x1b[31mb'"),
        ("prune own_net:make --data rows.npy --device meta", "--device must be a device torch can use"),
        ("prune own_net:make --data rows.npy --device cuda:99", "--device must be a device torch can use here"),
        ("prune own_net:make --data rows.npy --samples 0", "--samples must be >= 1, got 0"),
        ("speed own_net:make --input 8 --threads " + "9" * 30, "--threads must be whole numbers >= 1 such as"),
        ("prune own_net:make -o " + "x" * 300 + ".safetensors", "x" * 50),
    ],
)
def test_words_that_cannot_be(run, own, line, said):
    Path("rows.npy").touch()
    run(line).refused(said)


@pytest.mark.parametrize("seed", ["-1", str(2**63), "9" * 5000, "1.5", "x"])
def test_seeds(run, own, seed):
    answer = run(f"prune own_net:make --seed={seed}")
    assert (answer.code, answer.out) == (2, "")
    assert "whole number" in answer.err


def test_whole_numbers_that_torch_cannot_count_to(run, own):
    answer = run(f"prune own_net:make --samples={2**63}")
    assert (answer.code, answer.out) == (2, "")
    assert "whole number below 2**63" in answer.err


@pytest.mark.parametrize("line", ["speed own_net:make --input", "export own_net:make --safetensors o --input"])
def test_shapes_that_torch_cannot_count_to(run, own, line):
    answer = run(f"{line} {'9' * 5000}")
    assert (answer.code, answer.out) == (1, "")
    assert "must be whole numbers >= 1 such as 3,32,32, got '9999" in answer.err.splitlines()[-1]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_nobodys_fault(run, monkeypatch, error):
    break_app(monkeypatch, error)
    run("info x").refused("there is not enough memory for this")


def test_a_folder_named_as_the_settings(run):
    Path("feta.toml").mkdir()
    run("methods").refused("feta.toml")


def test_metadata_cannot_steer_the_terminal(run):
    about = {"specification": "3FC\x1b[2J\x1b]0;owned\x07", "data": "\x9b31m", "pruning": {"method": "\x1b[31m"}}
    content = sparse_file.encode({"a\x1b[31mb": torch.ones(3, 3)}, {"version": 1, "network": about})
    Path("evil.safetensors").write_bytes(content)
    answer = run("info evil.safetensors")
    assert answer.code == 0
    assert "\\x1b[2J" in answer.out
    assert not set("\x1b\x07\x9b") & set(answer.out + answer.err)
    told = run("info evil.safetensors --json").json()
    assert told["network"] == about


@pytest.mark.parametrize("option", ["--feta fast", "--feta=fast", "--feta"])
def test_an_option_of_a_method_has_a_name(run, option):
    answer = run(f"prune a.safetensors {option}")
    assert (answer.code, answer.out) == (2, "")
    assert "--feta must be followed by .OPTION, as in --feta.quality fast" in answer.err


def test_a_message_is_about_an_option_only_where_it_names_an_argument(run, monkeypatch):
    break_app(monkeypatch, feta.DataError("data set 'cifar-10' was not found"))
    run("prune a --data cifar-10").refused("feta: data set 'cifar-10' was not found")
    break_app(monkeypatch, feta.ConfigError("certify.samples must be >= 1, got 0"))
    run("certify a b --samples 0").refused("feta: --samples must be >= 1, got 0")
