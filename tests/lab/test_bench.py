"""The benchmark: every cell once, equal terms, reasons for what cannot be done, a page that is read in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feta.errors import ConfigError
from feta_lab import bench as benching
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.bench import Bench, floor_seconds, parse_method, run_bench, table
from feta_lab.page.sections.bench import sparsity_charts, time_charts, verdicts, write_bench
from feta_lab.records import read
from feta_lab.zoo import network_path

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two untrained networks where the benchmark looks for trained ones: what is tested is not their accuracy."""
    folder = tmp_path_factory.mktemp("networks")
    data = datasets.load("mnist-mini")
    for seed in (0, 1):
        model = networks.build("60FC-60FC-10SM", data.shape, seed=seed)
        info = store.NetworkInfo(
            "60FC-60FC-10SM", data.shape, "mnist-mini", data.normalisation, "dense-mnist", seed
        )
        store.save(store.Network(model, info), network_path(folder, "dense-mnist", seed, "mnist-mini"))
    return folder


def plan(folder, **changes):
    settings = {
        "nets": ("dense-mnist",),
        "methods": ("feta", "threshold", "feta:quality=fast", "exact-obs:max-cost=1"),
        "sparsities": (0.9, 0.98),
        "seeds": 2,
        "samples": 300,
        "data": "mnist-mini",
        "networks": folder,
    }
    return Bench(**{**settings, **changes})


@pytest.fixture(scope="module")
def cells(folder, tmp_path_factory):
    return run_bench(plan(folder), tmp_path_factory.mktemp("records") / "records.jsonl")


def test_every_cell_once(cells):
    assert len(cells) == 2 * 2 * 2 * 4
    assert len({tuple(cell[key] for key in benching.KEY) for cell in cells}) == len(cells)
    named = (
        "net",
        "method",
        "sparsity",
        "seed",
        "compensate",
        "accuracy",
        "dense_accuracy",
        "relative_error",
    )
    for cell in cells:
        assert all(key in cell for key in (*named, "seconds", "floor_seconds", "environment"))


def test_what_cannot_be_done_is_a_cell_with_its_reason(cells):
    refused = [cell for cell in cells if cell["method"].startswith("exact-obs")]
    assert refused
    assert all(cell["accuracy"] is None and "max_cost" in cell["reason"] for cell in refused)


def test_exact_counts(cells):
    for cell in cells:
        if cell["accuracy"] is not None:
            shares = 1 - cell["sparsity"]
            assert cell["nonzeros"] == [round(shares * 784 * 60), round(shares * 60 * 60)]


def test_a_second_run_adds_only_what_is_missing(folder, tmp_path, monkeypatch):
    records = tmp_path / "records.jsonl"
    small = plan(folder, methods=("threshold",), seeds=1, compensate=(False,))
    first = run_bench(small, records)
    calls = []
    monkeypatch.setattr(benching, "prune", lambda *a, **k: calls.append(a) or pytest.fail("ran again"))
    assert run_bench(small, records) == first
    assert not calls
    monkeypatch.undo()
    more = run_bench(plan(folder, methods=("threshold",), seeds=1, compensate=(False,), samples=200), records)
    assert {cell["samples"] for cell in more} == {200}  # other samples are other cells
    assert len(read(records)) == 4


def test_allocations_are_cells_of_their_own_and_old_records_are_uniform(folder, tmp_path):
    records = tmp_path / "records.jsonl"
    small = {"methods": ("threshold",), "sparsities": (0.9,), "seeds": 1, "compensate": (False,)}
    (uniform,) = run_bench(plan(folder, **small), records)
    old = {key: value for key, value in uniform.items() if not key.startswith("allocation")}
    records.write_text(json.dumps(old) + "\n", encoding="utf-8")
    (again,) = run_bench(plan(folder, **small), records)
    assert again == old
    (shared,) = run_bench(plan(folder, **small, allocation="erk"), records)
    assert shared["allocation"] == "erk"
    assert shared["nonzeros"] != uniform["nonzeros"]
    assert sum(shared["nonzeros"]) == sum(uniform["nonzeros"])
    with pytest.raises(ConfigError, match="unknown allocation 'erc'; did you mean 'erk'"):
        plan(folder, allocation="erc")


def test_records_of_other_experiments_are_left_alone(folder, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"net": "dense-mnist", "seed": 0, "layer": "fc1", "accuracy": 90.0}\n')
    small = plan(folder, methods=("threshold",), sparsities=(0.9,), seeds=1, compensate=(False,))
    assert len(run_bench(small, path)) == 1
    assert len(path.read_text().splitlines()) == 2


def test_floor_is_a_time_and_leaves_no_hook(folder):
    network = store.load(network_path(folder, "dense-mnist", 0, "mnist-mini"))
    data = datasets.load("mnist-mini")
    images = data.normalisation.apply(data.test.images, "cpu")
    assert floor_seconds(network, images, 500, 0) > 0
    assert not any(module._forward_pre_hooks for module in network.model.modules())


def test_table_uses_the_seeds_all_methods_share(cells):
    missing = [c for c in cells if not (c["method"] == "feta" and c["seed"] == 1 and c["sparsity"] == 0.9)]
    rows = {(r["method"], r["sparsity"], r["compensate"]): r for r in table(missing)}
    assert rows["threshold", 0.9, False]["seeds"] == rows["feta", 0.9, False]["seeds"] == 1
    assert rows["threshold", 0.98, False]["seeds"] == 2
    first = next(c for c in cells if c["method"] == "threshold" and c["sparsity"] == 0.9 and c["seed"] == 0)
    assert rows["threshold", 0.9, False]["accuracy"] == first["accuracy"]


def test_verdicts_do_not_count_our_own_variants_as_rivals(cells):
    faked = [{**c, "accuracy": 99.0 if c["method"] == "feta:quality=fast" else c["accuracy"]} for c in cells]
    for claim, verdict in verdicts(table(faked)):
        if claim.startswith("feta is"):
            assert verdict.split()[2] == "2"


def test_labels():
    assert parse_method("alps") == ("alps", {})
    assert parse_method("feta:solver=svrg+debias=false") == ("feta", {"solver": "svrg", "debias": "false"})


@pytest.mark.parametrize(
    "change",
    [{"nets": ("dense-mnst",)}, {"methods": ("alp",)}, {"methods": ("feta:qality=best",)}, {"seeds": 0}],
)
def test_bad_plans(folder, change):
    with pytest.raises(ConfigError):
        plan(folder, **change)


def test_charts_and_page(cells, tmp_path):
    rows = [row for row in table(cells) if row["compensate"]]
    assert len(sparsity_charts(rows)) == len(time_charts(rows, 0.9)) == 1
    first, second = (write_bench(tmp_path / name, cells).read_text() for name in "ab")
    assert "feta benchmark" in first
    assert first == second
    assert {"sparsity-plain.png", "time-compensated.svg"} <= {
        path.name for path in (tmp_path / "a").iterdir()
    }


@pytest.mark.browser
def test_page_in_a_browser(cells, browser, tmp_path):
    browser.get_log("browser")
    browser.get(write_bench(tmp_path, cells).as_uri())
    assert "feta benchmark" in browser.title
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_command_prints_one_object(folder, tmp_path):
    command = [
        sys.executable, "-m", "feta", "bench", "--nets", "dense-mnist", "--methods", "threshold", "--sparsity", "0.9",
        "--seeds", "1", "--compensate", "off", "--samples", "200", "--data", "mnist-mini", "--json",
        "--networks", str(folder), "-o", str(tmp_path / "out"), "--device", "cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert set(answer) == {"environment", "cells"}
    assert len(answer["cells"]) == 1
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {
        "records.jsonl",
        "report.html",
        "sparsity-plain.png",
    }


def test_the_readme_holds_the_table_of_its_records():
    script, records = ROOT / "benchmarks" / "readme_results.py", ROOT / "results" / "gpu" / "records.jsonl"
    command = [sys.executable, str(script), str(records), "--check", str(ROOT / "README.md")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
