"""feta speed: its contract with programs, its page, what it says, and refusals in one line."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from own_models import CODE, rows, write_code

from feta.cli.speed_page import changes_said, forms_said, speed_page
from feta.inference import calls, timing

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One short turn for each: times are not what is tested here."""
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 1e-5)
    monkeypatch.setattr(timing, "MOST_SECONDS", 0)


def test_json_of_a_pruned_file(run, pruned):
    found = run(f"speed {pruned} --batch 16,1,16 --threads 2,1 --json").json()
    assert [(row["batch"], row["threads"]) for row in found["batches"]] == [(1, 1), (16, 1), (1, 2), (16, 2)]
    assert all(row["dense_ms"] > 0 and row["sparse_ms"] > 0 for row in found["batches"])
    assert found["file_bytes"] == pruned.stat().st_size
    assert found["report"] is None
    assert set(found["memory"]) == {"dense_bytes", "sparse_bytes"}
    first = found["layers"][0]
    assert first["name"] == "fc1"
    assert 0.8 < first["sparsity"] < 1
    assert set(first["dense_ms"]) == {"1", "16"}
    assert first["dense_bytes"] > 0
    assert {"torch", "cpu", "python"} == set(found["environment"])
    assert torch.get_num_threads() == 1  # as it was before


def test_what_no_single_layer_shows_is_said():
    teams = [{"threads": 1, "dead_neurons": 0, "joined": 5, "notes": []}]
    assert forms_said(teams) == "dense → the fastest form"
    assert changes_said({"teams": teams}) == ["5 neighbouring modules run in one call: no single layer shows that"]
    teams.append({"threads": 2, "dead_neurons": 1, "joined": 0, "notes": ["the dense layers stay: they are fast"]})
    assert forms_said(teams) == "dense → the fastest form, by itself; the dense layers stay with 2 threads"
    assert forms_said(teams[1:]) == "dense → the fastest form, by itself; the dense layers stay"
    assert changes_said({"teams": teams})[1] == "with 2 threads 1 neuron without effect taken out first"


def test_what_it_says_and_the_page(run, pruned):
    answer = run(f"speed {pruned} --batch 1,4 --report out/speed.html")
    assert answer.code == 0
    for word in (
        "Layers",
        "ms at 4",
        "memory (× dense)",
        "fc1",
        "faster by",
        "in memory",
        "in a file",
        "written: out/speed.html",
    ):
        assert word in answer.out
    page = Path("out/speed.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r'(src|href)=(?!"data:,")', page)  # one file that needs nothing else
    bars = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page)]
    widths = [float(bar.findall("rect")[1].attrib["width"]) for bar in bars]
    assert len(widths) == 4
    assert max(widths[:2]) == max(widths[2:]) == 100  # of dense and sparse the slower one
    assert '<span class="name">batch 4, 1 thread</span>' in page


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("make", ""),
        ("Conv", "--input 3,8,8"),
        ("Tokens", "--input 7"),
        ("make", "--data x.npy"),
        ("Tokens", "--data tokens.npz"),
    ],
)
def test_models_of_ones_own(run, factory, options):
    np.save("x.npy", rows())
    np.savez("tokens.npz", input_ids=np.arange(60).reshape(10, 6), shift=np.ones((10, 12), np.float32))
    answer = run(f"speed {write_code()}:{factory} --batch 1,2 --json {options}")
    assert answer.code == 0
    assert '"batches": [{"batch": 1' in answer.out


def test_without_numba_a_note_says_so(run, pruned, monkeypatch):
    monkeypatch.setattr(calls, "kernels", lambda: None)
    answer = run(f"speed {pruned} --batch 1")
    assert "note: the kernels of feta's own need numba" in answer.err
    assert "pip install numba" in answer.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--batch 0", "--batch must be whole numbers >= 1 such as 1,16, got '0'"),
        ("--batch 1,a", "--batch must be whole numbers"),
        ("--threads 1.5", "--threads must be whole numbers"),
        ("--device tpu", "--device"),
        ("--weights w.safetensors", "--weights must go with module:factory"),
    ],
)
def test_refusals(run, pruned, options, words):
    run(f"speed {pruned} {options}").refused(words)


def test_refusals_of_inputs(run):
    name = write_code(CODE.replace("print(", "str("))
    run(f"speed {name}:Conv").refused("--input or --data must say what", "takes, got neither")
    run(f"speed {name}:Conv --input 3,x").refused("--input must be whole numbers >= 1 such as 3,32,32, got '3,x'")
    run(f"speed {name}:Conv --input 4,8,8").refused(
        "--input must be the shape of one sample, such as 3,8,8, got 4,8,8 for"
    )
    run(f"speed {name}:Conv --input 8x8").refused("such as 3,8,8, got 8x8 for", "to have 3 channels")
    run(f"speed {name}:make --input 8").refused("--input must be the shape of one sample, such as 20, got 8 for")
    run(f"speed {name}:Tokens").refused("got neither; write --input 64, the number of tokens")
    run("speed missing.safetensors").refused("missing.safetensors")
    Path("net.pt").write_bytes(b"PK")
    run("speed net.pt").refused("net.pt")


def test_names_on_the_page_are_words(run, pruned):
    found = run(f"speed {pruned} --batch 1 --json").json()
    evil = "<script>\u202e\x1b[2J\n" + "x" * 100_000
    changed = found | {
        "network": evil,
        "notes": [evil],
        "device": evil,
        "layers": [found["layers"][0] | {"name": evil}],
    }
    text = speed_page(changed)
    assert "<script" not in text
    assert text.count("&lt;script&gt;\\u202e\\x1b[2J\\n") == 5  # twice the network's
    assert text.replace("\n", "").isprintable()
    assert len(text) < 20_000
