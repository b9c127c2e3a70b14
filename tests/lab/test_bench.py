"""The benchmark: every cell once, equal terms, reasons for what cannot be done, a page that is read in a browser."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feta.errors import ConfigError, FileError
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.experiments import pruning, run
from feta_lab.experiments.bench import Bench, floor_seconds, table
from feta_lab.experiments.plan import parse_method
from feta_lab.experiments.subject import network_path
from feta_lab.page.sections.bench import sparsity_charts, time_charts, verdicts, write_bench
from feta_lab.records import read

# Untrained networks and few samples: that layers need a look is no news here.
pytestmark = pytest.mark.filterwarnings("ignore::feta.engine.finish.PruneWarning")

ROOT = Path(__file__).parents[2]
SMALL = {"methods": "threshold", "seeds": 1, "compensate": "false", "sparsity": "0.9"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two untrained networks where the benchmark looks for trained ones: what is tested is not their accuracy."""
    folder = tmp_path_factory.mktemp("networks")
    data = datasets.load("mnist-mini")
    for seed in (0, 1):
        model = networks.build("60FC-60FC-10SM", data.shape, seed=seed)
        info = store.NetworkInfo("60FC-60FC-10SM", data.shape, "mnist-mini", data.normalisation, "dense-mnist", seed)
        store.save(store.Network(model, info), network_path(folder, "dense-mnist", seed, "mnist-mini"))
    return folder


@pytest.fixture(scope="module")
def bench(folder):
    """Run the benchmark into a folder."""

    def runner(out, name="bench", **changes):
        common = {"nets": "dense-mnist", "samples": 300, "data": "mnist-mini", "device": "cpu"}
        return run(name, **{**common, "networks": folder, "out": out, **changes}).records

    return runner


@pytest.fixture(scope="module")
def cells(bench, tmp_path_factory):
    methods = "feta,threshold,feta:quality=fast,exact-obs:max-cost=1"
    return bench(tmp_path_factory.mktemp("records"), methods=methods, sparsity="0.9,0.98", seeds=2)


def test_every_cell_once_and_methods_interleaved(cells):
    assert len(cells) == 2 * 2 * 2 * 4
    assert len({json.dumps(cell["key"]) for cell in cells}) == len(cells)
    assert len({cell["method"] for cell in cells[:4]}) == 4
    assert all(cell["kind"] == "bench" and cell["key"].items() <= cell.items() for cell in cells)
    assert all(cell["floor_seconds"] > 0 and cell["dense_accuracy"] > 0 and cell["timed"] for cell in cells)


def test_counts_are_exact_and_refusals_have_reasons(cells):
    for cell in cells:
        if cell["method"].startswith("exact-obs"):
            assert cell["accuracy"] is None
            assert "max_cost" in cell["reason"]
        else:
            share = 1 - cell["sparsity"]
            assert cell["nonzeros"] == [round(share * 784 * 60), round(share * 60 * 60)]
            assert len(cell["relative_error"]) == 2


def test_a_second_run_adds_only_what_is_missing(bench, tmp_path, monkeypatch):
    first = bench(tmp_path, **SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(pruning, "prune", lambda *a, **k: pytest.fail("ran again"))
        assert bench(tmp_path, **SMALL) == first
    (more,) = bench(tmp_path, **SMALL | {"samples": 200})
    assert more["samples"] == 200  # other samples are other cells
    (shared,) = bench(tmp_path, **SMALL, allocation="erk")
    assert shared["nonzeros"] != first[0]["nonzeros"]
    assert sum(shared["nonzeros"]) == sum(first[0]["nonzeros"])
    assert len(read(tmp_path / "records.jsonl")) == 3


def test_variants_of_the_benchmark(bench, tmp_path):
    """Allocations side by side, timing in rounds, and many cells at once."""
    small = {name: value for name, value in SMALL.items() if name != "compensate"}
    found = bench(tmp_path, "allocation", **small, allocation="uniform,erk", layers="fc1")
    assert [(r["kind"], r["allocation"], r["compensate"]) for r in found] == [
        ("allocation", "uniform", True), ("allocation", "erk", True),
    ]  # fmt: skip
    assert [len(record["nonzeros"]) for record in found] == [1, 1]
    rounds = bench(tmp_path, "timing", methods="threshold")
    assert [(r["kind"], r["round"], r["timed"]) for r in rounds] == [("timing", n, True) for n in (0, 1)]
    assert all(not r["timed"] for r in bench(tmp_path, **SMALL | {"sparsity": "0.9,0.95"}, jobs=2))


def test_floor_is_a_time_and_leaves_no_hook(folder):
    model = store.load(network_path(folder, "dense-mnist", 0, "mnist-mini")).model
    data = datasets.load("mnist-mini")
    assert floor_seconds(model, data.normalisation.apply(data.test.images, "cpu"), 500, 0) > 0
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_table_uses_the_seeds_all_methods_share(cells):
    missing = [c for c in cells if not (c["method"] == "feta" and c["seed"] == 1 and c["sparsity"] == 0.9)]
    rows = {(r["method"], r["sparsity"], r["compensate"]): r for r in table(missing)}
    assert rows["threshold", 0.9, False]["seeds"] == rows["feta", 0.9, False]["seeds"] == 1
    assert rows["threshold", 0.98, False]["seeds"] == 2
    first = next(c for c in cells if c["method"] == "threshold" and c["sparsity"] == 0.9 and c["seed"] == 0)
    assert rows["threshold", 0.9, False]["accuracy"] == first["accuracy"]
    assert "max_cost" in rows["exact-obs:max-cost=1", 0.9, False]["reason"]
    # Accuracies are means, seconds are medians.
    three = [
        {**cells[0], "seed": seed, "accuracy": value, "seconds": value, "floor_seconds": value}
        for seed, value in enumerate((1.0, 2.0, 9.0))
    ]
    (row,) = table(three)
    assert (row["accuracy"], row["seconds"], row["floor"]) == (4.0, 2.0, 2.0)


def test_verdicts_do_not_count_our_own_variants_as_rivals(cells):
    faked = [{**c, "accuracy": 99.0 if c["method"] == "feta:quality=fast" else c["accuracy"]} for c in cells]
    for claim, verdict in verdicts(table(faked)):
        if claim.startswith("feta is"):
            assert verdict.split()[2] == "2"


def test_labels_and_bad_plans():
    assert parse_method("alps") == ("alps", {})
    assert parse_method("feta:solver=svrg+debias=false") == ("feta", {"solver": "svrg", "debias": "false"})
    wrong = {"nets": "dense-mnst", "methods": "alp", "allocation": "erc"}
    for change in ({"seeds": 0}, {"methods": ("feta:qality=best",)}, *({n: (v,)} for n, v in wrong.items())):
        with pytest.raises(ConfigError):
            Bench(**change)


def test_charts_and_page(cells, tmp_path):
    rows = [row for row in table(cells) if row["compensate"]]
    assert len(sparsity_charts(rows)) == len(time_charts(rows, 0.9)) == 1
    first, second = (write_bench(tmp_path / name, cells).read_text() for name in "ab")
    assert "feta benchmark" in first
    assert first == second
    assert {"sparsity-plain.png", "time-compensated.svg"} <= {path.name for path in (tmp_path / "a").iterdir()}


@pytest.mark.browser
def test_page_in_a_browser(cells, visit, tmp_path):
    assert "feta benchmark" in visit(write_bench(tmp_path, cells)).title


def test_command_prints_one_object(folder, tmp_path):
    command = [
        sys.executable, "-m", "feta", "bench", "--nets", "dense-mnist", "--methods", "threshold", "--sparsity", "0.9",
        "--seeds", "1", "--no-compensate", "--samples", "200", "--data", "mnist-mini", "--json",
        "--networks", str(folder), "-o", str(tmp_path / "out"), "--device", "cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert set(answer) == {"environment", "cells"}
    assert len(answer["cells"]) == 1
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"records.jsonl", "report.html", "sparsity-plain.png"}


def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("feta_lab.experiments.plan.train_missing", lambda *args: pytest.fail("trained"))
    (tmp_path / "file").touch()
    (tmp_path / "out" / "records.jsonl").mkdir(parents=True)
    small = {"nets": "dense-mnist", "data": "mnist-mini", "device": "cpu", **SMALL}
    for places in ({"networks": tmp_path / "file"}, {"out": tmp_path / "out"}, {"out": tmp_path / "file"}):
        with pytest.raises(FileError, match="cannot write"):
            run("bench", **{**small, "networks": tmp_path, "out": tmp_path, **places})
