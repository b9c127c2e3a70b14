"""feta prune: its contract with programs, its files and records, and every refusal in one line."""

import errno
import io
import json
import os
import pickle
import tempfile
from dataclasses import fields
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save

import feta
from feta.cli.prune import MethodOptions, parse_sparsity
from feta.pruners import DEFAULT_METHOD, METHODS
from feta.report import LayerReport, PruneReport
from feta_lab.judge import judge
from feta_lab.records import read

KEYS = {field.name for field in fields(PruneReport)} | {
    "accuracy",
    "file_bytes",
    "notes",
    "weights",
    "output",
    "report",
}
LAYER_KEYS = {field.name for field in fields(LayerReport)} - {"stats"}


def nonzeros(found) -> list[int]:
    return [layer["nonzeros"] for layer in found["layers"]]


def test_json_file_and_record_agree(run, trained, mini, tmp_path):
    output = tmp_path / "deep" / "out.safetensors"
    line = f"prune {trained} --sparsity 0.8 --json --seed 3 --compensate -o {output}"
    found = run(f"{line} --records {tmp_path / 'all.jsonl'}").json()
    assert set(found) == KEYS
    assert [set(layer) for layer in found["layers"]] == [LAYER_KEYS] * 2
    assert (found["method"], found["target_sparsity"], found["seed"]) == ("threshold", 0.8, 3)
    assert (found["compensated"], found["refinement"]) == ({"softmax": "ok"}, None)
    assert found["device"] in ("cpu", "cuda")
    assert (nonzeros(found), found["sparsity"]) == ([9408, 720], pytest.approx(0.8))
    pruned = feta.load(output)
    assert found["accuracy"] == {"dense": judge(feta.load(trained).model, mini), "pruned": judge(pruned.model, mini)}
    assert found["weights"] == trained.name
    assert found["file_bytes"] == {"dense": trained.stat().st_size, "pruned": output.stat().st_size}
    assert pruned.info.accuracy == found["accuracy"]["pruned"]
    kept = {key: found[key] for key in ("method", "target_sparsity", "sparsity", "seed", "options", "compensated")}
    kept |= {"layers": ["fc1", "fc2"], "dense_accuracy": found["accuracy"]["dense"]}
    assert pruned.info.pruning == kept
    assert (found.pop("output"), found.pop("report")) == (str(output), None)
    (entry,) = read(tmp_path / "all.jsonl")
    assert (entry["kind"], entry["metrics"]) == ("prune", found)
    assert (entry["config"]["network"], entry["config"]["compensate"]) == (trained.name, True)
    assert entry["environment"]["commit"]
    assert not any(str(folder) in json.dumps(entry) for folder in (tmp_path, trained.parent))


@pytest.mark.parametrize(("dtype", "least"), [("float16", 1.4), ("bfloat16", 1.7), ("int8", 1.8)])
def test_rounded_weights_cost_what_is_said(run, trained, mini, dtype, least):
    exact = run(f"prune {trained} --json -o exact.safetensors").json()
    found = run(f"prune {trained} --json --dtype {dtype} -o out.safetensors").json()
    cost, written = found["rounding"], Path("out.safetensors").stat().st_size
    assert cost["exact_bytes"] == exact["file_bytes"]["pruned"] == Path("exact.safetensors").stat().st_size
    assert found["file_bytes"]["pruned"] == written
    assert cost["exact_bytes"] / written > least
    stored = feta.load("out.safetensors")
    assert cost["accuracy"] == judge(stored.model, mini) == stored.info.accuracy
    assert found["accuracy"]["pruned"] == exact["accuracy"]["pruned"]
    before, after = (one.model.fc1.weight.detach() for one in (feta.load("exact.safetensors"), stored))
    assert bool((after[before == 0] == 0).all())
    assert float((after - before).norm() / before.norm()) == pytest.approx(cost["weight_error"], rel=0.3)
    text = run(f"prune {trained} --dtype {dtype}")
    text.says(f"weights rounded to {dtype}: off by {100 * cost['weight_error']:.2g} %, test accuracy", "→")


def test_the_table_is_followed_by_what_there_is_to_say(run, trained):
    answer = run(f"prune {trained} --method feta --samples 100")
    assert "whole model: 88.72 % of 51.4 k parameters zero" in answer.out
    assert "fc1: 90 rows for 784 inputs: too few; 3136 samples would do" in answer.out
    assert "left as it is: softmax (1.2 % of all): its outputs are the model's" in answer.out
    assert answer.err.startswith("feta: warning: ")
    assert "needs a look; fc1: 90 rows" in answer.err


def test_records_go_where_they_are_asked_and_without_an_output_nothing_else_is_written(run, trained):
    before = trained.read_bytes()
    found = run(f"prune {trained} --json").json()
    assert os.listdir() == []
    for share in ("0.9", "0.5"):
        run(f"prune {trained} --json --records mine/all.jsonl --sparsity {share}")
    assert [entry["config"]["sparsity"] for entry in read(Path("mine/all.jsonl"))] == ["0.9", "0.5"]
    assert found["file_bytes"]["pruned"] < found["file_bytes"]["dense"] / 6
    assert trained.read_bytes() == before


def test_the_table_shows_layers_accuracy_and_size(run, trained):
    output = "runs[/bold]/[red]/out.safetensors"  # brackets are no markup
    answer = run(f"prune {trained} --output {output}")
    answer.says("fc1", "60×784", "4,704", "90.00 %", "test accuracy", "smaller", f"written to {output}\n")
    assert os.path.exists(output)
    assert "nothing was saved" not in answer.out
    answer = run(f"prune {trained} --allocation erk")
    answer.says("budget shared by erk in ", "smaller); nothing was saved, give -o FILE\n")
    assert "weights: " not in answer.out


def test_layers_sparsities_and_modes(run, trained):
    found = run(f"prune {trained} --json --sparsity fc1=0.95,fc2=0.5").json()
    assert found["target_sparsity"] == {"fc1": 0.95, "fc2": 0.5}
    assert nonzeros(found) == [2352, 1800]
    found = run(f"prune {trained} --json --allocation global-magnitude --mode parallel --samples 50").json()
    assert sum(nonzeros(found)) == 5064
    found = run(f"prune {trained} --json --sparsity 0.5 --layers fc2 --layers soft*").json()
    assert [layer["name"] for layer in found["layers"]] == ["fc2", "softmax"]


def test_a_pruned_network_can_be_pruned_further_over_an_old_file(run, trained):
    Path("b.safetensors").write_text("something else")
    run(f"prune {trained} -o a.safetensors --sparsity 0.5").says()
    line = "prune a.safetensors -o b.safetensors --sparsity 0.9 --json"
    run(line).refused("--output must be a new file, got b.safetensors, which is there already; --force replaces it")
    assert Path("b.safetensors").read_text() == "something else"
    run("prune a.safetensors -o a.safetensors --force").refused("--output must differ from the input")
    assert nonzeros(run(f"{line} --force").json()) == [4704, 360]
    assert feta.load("b.safetensors").info.pruning["target_sparsity"] == 0.9


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("1.5", ("--sparsity must be in [0, 1), got 1.5", "write 0.015 for 1.5 %")),
        ("90", ("--sparsity must be in [0, 1), got 90", "write 0.9 for 90 %")),
        ("-0.1", ("--sparsity must be in [0, 1), got -0.1",)),
        ("1", ("--sparsity must be in [0, 1), got 1",)),
        ("nan", ("--sparsity must be in [0, 1), got nan",)),
        ("90%", ("--sparsity must be a number in [0, 1), got '90%'; write 0.9 for 90 %",)),
        ("much", ("--sparsity must be a number in [0, 1), got 'much'",)),
        ("=", ("must be a number in [0, 1), got ''",)),
        ("fc1=2", ("--sparsity fc1 must be in [0, 1), got 2",)),
        ("fc1=a", ("--sparsity fc1 must be a number",)),
        ("fc1=0.5,fc1=0.9", ("--sparsity must name each layer once, got 'fc1' more than once",)),
        ("fc1=0.5,0.9", ("--sparsity 0.9 must be a number",)),
        ("fc9=0.5", ("--sparsity must name layers that are chosen, got 'fc9'", "fc1")),
    ],
)
def test_sparsities_that_are_refused(run, trained, given, words):
    run(f"prune {trained} --sparsity={given}").refused(*words)


def test_parse_sparsity():
    assert parse_sparsity("0.9") == 0.9
    assert parse_sparsity("fc1=0.95, conv*=0.5") == {"fc1": 0.95, "conv*": 0.5}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--method thresold", ("unknown method 'thresold'; did you mean 'threshold'?",)),
        ("--layers fc9", ("--layers must name layers that can be pruned, got 'fc9'", "'fc1', 'fc2'")),
        ("--allocation uniforn", ("unknown allocation 'uniforn'; did you mean 'uniform'?",)),
        ("--device gpuu", ("--device must be a device torch can use here, got 'gpuu'",)),
        ("--samples 0", ("--samples must be >= 1, got 0",)),
        ("--threshold.speed 3", ("unknown option of threshold 'speed'",)),
        ("--alps.refit exact", ("--alps.refit must go with --method alps, got --method threshold",)),
        ("--refine-steps 2", ("--refine-steps must go with --refine",)),
        ("--refine --refine-steps 0", ("feta: --refine-steps must be > 0", "got 0")),
        ("--effort fast --refine", ("--refine must be left to the effort",)),
        ("--seconds 3", ("--seconds must go with an effort",)),
        ("--effort fast --seconds -3", ("--seconds must be > 0 and finite, got -3",)),
        ("-o out.pt", ("--output must end in .safetensors, got out.pt, whose ending stands for a pickle",)),
        ("-o file/out.safetensors", ("cannot write file/out.safetensors",)),
        ("-o out.onnx", ("--output must be a .safetensors file, got out.onnx", "feta export --onnx")),
        ("-o out.html", ("--output must be a .safetensors file, got out.html", "--report")),
        ("--report out.safetensors", ("--report must end in .html, got out.safetensors",)),
    ],
)
def test_options_that_are_refused(run, trained, options, words):
    Path("file").touch()
    run(f"prune {trained} {options}").refused(*words)


def test_nan_weights_are_refused_with_the_layers_name(run, trained):
    network = feta.load(trained)
    with torch.no_grad():
        network.model.fc2.weight[0, 0] = float("nan")
    feta.save(network, "nan.safetensors")
    answer = run("prune nan.safetensors -o out.safetensors")
    answer.refused("fc2: weights must be finite, got 1 NaN or infinite of 3600")
    assert answer.err.count("fc2") == 1
    assert "out.safetensors" not in os.listdir()


TORCH = io.BytesIO()
torch.save({"fc1.weight": torch.ones(2)}, TORCH)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must be a whole safetensors file"),  # half of a network
        (b"I am a network, honestly", "must be a whole safetensors file"),
        (pickle.dumps({"fc1.weight": [1.0]}), "got a pickle or a zip archive, which feta never loads"),
        (TORCH.getvalue(), "got a pickle or a zip archive, which feta never loads"),
        (save({"fc1.weight": torch.ones(2)}), "must describe its network"),
    ],
)
@pytest.mark.parametrize("command", ["prune", "eval"])
def test_files_that_are_refused(run, trained, tmp_path, content, words, command):
    path, whole = tmp_path / "spoilt.safetensors", trained.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    run(f"{command} {path}").refused(str(path), words)
    run(f"{command} none.safetensors").refused("cannot read none.safetensors: No such file or directory")


@pytest.mark.parametrize(("given", "output"), [("a", "a"), ("a", "sub/../a"), ("a", "link"), ("link", "a")])
@pytest.mark.parametrize("command", ["prune", "retrain"])
def test_the_output_must_not_be_the_input(run, trained, command, given, output):
    Path("a").write_bytes(trained.read_bytes())
    Path("link").symlink_to("a")
    Path("sub").mkdir()
    run(f"{command} {given} -o {output}").refused("--output must differ from the input")
    assert Path("a").read_bytes() == trained.read_bytes()


def test_no_permission_is_said_before_the_work(run, trained, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=OSError(errno.EACCES, "Permission denied")))
    monkeypatch.setattr("feta.cli.subject.prune", lambda *a, **k: pytest.fail("it must not get so far"))
    run(f"prune {trained} -o out.safetensors").refused("cannot write out.safetensors: Permission denied")
    run(f"prune {trained} --records all.jsonl").refused("cannot write all.jsonl: Permission denied")


def test_a_full_disk_is_one_line_and_leaves_no_file(run, trained, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    run(f"prune {trained} -o out.safetensors").refused("cannot write out.safetensors: No space left on device")
    assert os.listdir() == []


def test_threshold_needs_no_data_and_says_so(run, trained, tmp_path):
    network = feta.load(trained)
    feta.save(network.with_model(network.model, data="cifar-10"), "net.safetensors")
    line = f"prune net.safetensors --data-dir {tmp_path / 'none'}"
    answer = run(f"{line} --json -o out.safetensors")
    assert (answer.code, json.loads(answer.out)["accuracy"]) == (0, None)
    assert answer.err.startswith("feta: warning: accuracy is not measured: ")
    assert feta.load("out.safetensors").info.accuracy == {}
    table = run(line)
    assert table.code == 0
    assert "test accuracy" not in table.out
    for needs in ("--method wanda", "--refine"):
        assert run(f"{line} {needs}").err.startswith("feta: data set 'cifar-10' was not found")


def test_the_methods_are_those_of_the_library(run, trained, monkeypatch):
    monkeypatch.delenv("FETA_PRUNE_METHOD")
    assert run(f"prune {trained} --json --effort fast").json()["method"] == DEFAULT_METHOD
    assert {field.name.replace("_", "-") for field in fields(MethodOptions)} == set(METHODS)
    run(f"prune {trained} --refine").refused("--refine must go with --method", "efforts, such as the default, refine")


def test_a_pattern_is_in_the_file_the_record_and_the_table(run, trained, tmp_path):
    output = tmp_path / "out.safetensors"
    found = run(f"prune {trained} --method threshold --pattern 2:4 --json -o {output} --records all.jsonl").json()
    assert (found["pattern"], found["target_sparsity"], found["sparsity"]) == ("2:4", 0.5, 0.5)
    assert {layer["pattern"] for layer in found["layers"]} == {"2:4"}
    weight = feta.load(output).model.get_submodule("fc1").weight
    assert (weight.unflatten(1, (-1, 4)) != 0).sum(2).eq(2).all()
    assert feta.load(output).info.pruning["pattern"] == "2:4"
    (entry,) = read(Path("all.jsonl"))
    assert (entry["config"]["pattern"], entry["config"]["sparsity"]) == ("2:4", "0.5")
    run(f"prune {trained} --method threshold --pattern 2:4").says("threshold, pattern 2:4, 50.00 % zeros")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--pattern 2:3:4", "--pattern must be N:M with 0 < N < M such as '2:4'"),
        ("--pattern 4x1", "sparsity must be given for pattern '4x1'"),
        ("--pattern 2:4 --sparsity 0.9", "sparsity must be 0.5 for pattern '2:4', or left out, got 0.9"),
        ("--pattern 2:4 --method net-trim", "for pattern '2:4', got 'net-trim'"),
    ],
)
def test_patterns_that_cannot_be(run, trained, options, message):
    run(f"prune {trained} {options}").refused(message)


def test_a_page_of_the_run(run, trained):
    answer = run(f"prune {trained} -o out.safetensors --report deep/page.html")
    answer.says("written: deep/page.html")
    page, found = Path("deep/page.html").read_text(encoding="utf-8"), run(f"prune {trained} --json").json()
    after, before = (found["accuracy"][name]["test"] for name in ("pruned", "dense"))
    for words in (
        f"{after:.2f} %",
        f"{before:.2f} % before",
        "net.safetensors, pruned",
        "What to try next",
        "fc2",
        "<code>feta speed out.safetensors</code>",
    ):
        assert words in page
    size = Path("out.safetensors").stat().st_size
    assert f"{size / 1e3:.3g} kB" in page
    assert run(f"prune {trained} --report deep/page.html --force --json").json()["report"] == "deep/page.html"


@pytest.mark.parametrize("place", ["out.safetensors", "records.jsonl", "{trained}", "folder"])
def test_a_page_goes_onto_no_other_file(run, trained, place):
    Path("folder").mkdir()
    before = trained.read_bytes()
    options = f"-o out.safetensors --records records.jsonl --report {place.format(trained=trained)}"
    run(f"prune {trained} {options}").refused(place.format(trained=trained))
    assert trained.read_bytes() == before
    assert not Path("out.safetensors").exists()


@pytest.mark.parametrize("place", ["{trained}", "out.safetensors", "notes.md"])
def test_a_record_goes_into_no_other_file(run, trained, place):
    Path("notes.md").write_text("# Notes\n\nmine")
    place = place.format(trained=trained)
    before = trained.read_bytes()
    run(f"prune {trained} -o out.safetensors --records {place}").refused(f"{place}")
    assert (trained.read_bytes(), Path("notes.md").read_text()) == (before, "# Notes\n\nmine")
    assert not Path("out.safetensors").exists()


def test_long_work_says_that_it_goes_on(run, trained, monkeypatch):
    monkeypatch.setattr("feta.progress.SELDOM", 0.0)
    answer = run(f"prune {trained} --method alps --samples 500 --json")
    assert answer.code == 0
    assert "\nfeta: pruning by alps: 2 of 2, " in answer.err
