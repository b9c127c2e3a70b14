"""Table 1 and Figure 2: the same path as the full run, on embedded data and networks made for the test."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from feta.errors import ConfigError, FileError
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.records import read
from feta_lab.reproduce import EXPERIMENTS, fig2, kept, reproduce, subject, table1
from feta_lab.reproduce.plan import METHODS, PAPER_NETS, load_plan
from feta_lab.reproduce.table1 import Table1
from feta_lab.zoo import network_path

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
KEYS = {
    "table1": "net method seed sparsity dense_accuracy accuracy prune_seconds retrain_seconds retrained_accuracy "
    "recovered epochs dense_validation validation environment device data data_name timed",
    "fig2": "net method seed sparsity refine dense_accuracy accuracy prune_seconds refine_seconds relative_error "
    "environment device data data_name timed",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An untrained network where trained ones are looked for: what is tested is not its accuracy."""
    folder = tmp_path_factory.mktemp("networks")
    data = datasets.load("mnist-mini")
    model = networks.build("8FC-8FC-10SM", data.shape, seed=0)
    info = store.NetworkInfo("8FC-8FC-10SM", data.shape, "mnist-mini", data.normalisation, "dense-mnist", 0)
    store.save(store.Network(model, info), network_path(folder, "dense-mnist", 0, "mnist-mini"))
    return folder


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """Both experiments, quick and quicker still, with a method that refuses."""
    out = tmp_path_factory.mktemp("results")
    small = {
        "networks": folder,
        "samples": 200,
        "methods": "threshold,feta:quality=fast,exact-obs:max-cost=1",
    }
    return {
        "table1": reproduce("table1", quick=True, out=out / "table1", epochs=1, **small),
        "fig2": reproduce("fig2", quick=True, out=out / "fig2", sparsity="0.9,0.95", **small),
    }


@pytest.mark.parametrize("name", ["table1", "fig2"])
def test_a_record_per_cell_with_its_fields(runs, name):
    done = runs[name]
    assert read(done.path) == done.records
    assert len(done.records) == {"table1": 3, "fig2": 3 * 2 * 2}[name]
    for record in done.records:
        if record["method"].startswith("exact-obs"):
            assert record["accuracy"] is None
            assert "max_cost" in record["reason"]
            assert record["dense_accuracy"] > 0
        else:
            assert set(KEYS[name].split()) <= set(record)
            counts = [6272, 64]
            assert record["nonzeros"] == [round(n * (1 - record["sparsity"])) for n in counts]


def test_table1_retrains(runs):
    threshold, feta, _ = runs["table1"].records
    for record in (threshold, feta):
        # The goal is an untrained network's accuracy: back at once, or after a part of an epoch.
        assert record["recovered"] is True
        assert record["retrained_validation"] >= record["dense_validation"] - record["tolerance"]
        assert record["total_seconds"] == record["prune_seconds"] + record["retrain_seconds"]
        assert record["retrain_seconds"] > 0
    assert "1 of 1" in str(runs["table1"].table)
    assert "refused" in str(runs["table1"].table)


def test_fig2_refines_what_was_pruned(runs):
    ran = [record for record in runs["fig2"].records if record["accuracy"] is not None]
    for plain, refined in zip(ran[::2], ran[1::2], strict=True):
        assert (plain["refine"], refined["refine"]) == (False, True)
        assert plain["prune_seconds"] == refined["prune_seconds"]  # one pruning for both
        assert plain["refine_seconds"] == 0 < refined["refine_seconds"]
        assert refined["loss_after"] <= refined["loss_before"]
        assert len(plain["relative_error"]) == 2
    assert {record["sparsity"] for record in ran} == {0.9, 0.95}


def test_a_network_is_pruned_once_for_both(folder, tmp_path, monkeypatch):
    small = {"networks": folder, "samples": 200, "methods": "feta:quality=fast", "keep": tmp_path / "pruned"}
    (first,) = reproduce("table1", quick=True, out=tmp_path / "table1", epochs=1, **small).records
    fig2._pruned.cache_clear()

    def never(*args, **kwargs):
        raise AssertionError("pruned again")

    monkeypatch.setattr(subject, "prune", never)
    plain, refined = reproduce("fig2", quick=True, out=tmp_path / "fig2", **small).records
    same = ("accuracy", "validation", "prune_seconds", "nonzeros", "relative_error", "status", "options")
    assert {key: plain[key] for key in same} == {key: first[key] for key in same}
    assert refined["nonzeros"] == first["nonzeros"]
    # Not another sparsity's, and not another dense network's.
    cell = {name: first[name] for name in kept.NAMED}
    dense = {"validation": first["dense_validation"], "test": first["dense_accuracy"]}
    model = networks.build("8FC-8FC-10SM", (1, 28, 28), seed=0)
    assert kept.find(tmp_path / "pruned", cell, dense, model) is not None
    assert kept.find(tmp_path / "pruned", {**cell, "sparsity": 0.8}, dense, model) is None
    assert kept.find(tmp_path / "pruned", cell, {**dense, "test": 50.0}, model) is None


def test_a_second_run_finds_all_done(runs, folder, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("nothing is left to run")

    monkeypatch.setattr(table1, "pruned", never)
    done = runs["table1"]
    again = reproduce(
        "table1",
        quick=True,
        out=done.path.parent,
        networks=folder,
        samples=200,
        epochs=1,
        methods="threshold,feta:quality=fast,exact-obs:max-cost=1",
    )
    assert again == done


def test_other_settings_are_other_cells():
    keys = {
        tuple(cell[name] for name in EXPERIMENTS["table1"].key_fields)
        for plan in (Table1(), Table1(epochs=3), Table1(samples=100), Table1(learning_rate=0.1))
        for cell in table1.cells(plan)
    }
    assert len(keys) == 4 * len(table1.cells(Table1()))


def test_without_the_command_line_libraries(tmp_path, folder):
    """As on a bare machine: argparse alone, and the worker that a budget needs."""
    script = (
        "import sys, runpy\n"
        "sys.modules['cyclopts'] = sys.modules['rich'] = sys.modules['jinja2'] = None\n"
        "if __name__ == '__main__':\n"
        "    runpy.run_module('feta_lab.reproduce', run_name='__main__')\n"
    )
    (tmp_path / "bare.py").write_text(script)
    command = [sys.executable, "bare.py", "fig2", "--quick", "--methods", "threshold", "--samples", "200"]
    command += ["--networks", str(folder), "--out", "out", "--cell-budget", "60"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("records: out/records.jsonl\n")
    assert len(read(tmp_path / "out" / "records.jsonl")) == 2


def test_the_command(tmp_path, folder):
    command = [
        sys.executable, "-m", "feta", "reproduce", "fig2", "--quick", "--methods", "threshold", "--device", "cpu",
        "--networks", str(folder), "--out", "b1", "--samples", "200",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [record["refine"] for record in read(tmp_path / "b1" / "records.jsonl")] == [False, True]
    assert "1/2 dense-mnist, seed 0, threshold, 0.9\n" in done.stderr
    assert done.stdout.splitlines()[-2:] == ["records: b1/records.jsonl", "page: b1/report.html"]
    assert "dense-mnist" in (tmp_path / "b1" / "report.html").read_text(encoding="utf-8")


# Plans


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_loads(path):
    name = path.stem.partition("-")[0]
    plan = load_plan(EXPERIMENTS[name].plan, name, path, {})
    assert EXPERIMENTS[name].cells(plan)


@pytest.mark.parametrize("name", ["table1", "fig2"])
def test_the_full_configuration_is_the_default(name):
    kind = EXPERIMENTS[name].plan
    assert load_plan(kind, name, ROOT / "configs" / f"{name}.toml", {}) == kind()
    assert (kind().nets, kind().methods, kind().seeds) == (PAPER_NETS, METHODS, 3)


def test_options_come_before_the_file_and_the_file_before_defaults(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('experiment = "table1"\nnets = ["dense-mnist"]\nseeds = 5\nout = "mine"\n')
    plan = load_plan(Table1, "table1", path, {"seeds": 2, "methods": "feta, lobs", "epochs": None})
    expected = Table1(nets=("dense-mnist",), seeds=2, methods=("feta", "lobs"), out=Path("mine"))
    assert plan == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('experiment = "fig2"', "experiment must be 'table1', got 'fig2'"),
        ("seeds = 3", "experiment must be 'table1', got None"),
        ('experiment = "table1"\nseed = 3', "unknown setting of table1 'seed'; did you mean 'seeds'?"),
        ('experiment = "table1"\nseeds = "three"', "seeds must be of type int, got 'three'"),
        ('experiment = "table1"\nseeds = true', "seeds must be of type int, got True"),
        ('experiment = "table1"\nseeds = 0', "seeds must be > 0 and finite, got 0"),
        ('experiment = "table1"\ncell_budget = inf', "cell_budget must be > 0 and finite, got inf"),
        ('experiment = "table1"\nlearning_rate = -1', "learning_rate must be > 0"),
        ('experiment = "table1"\nlearning_rate = nan', "learning_rate must be > 0"),
        ('experiment = "table1"\nbatch_size = 0', "batch_size must be > 0"),
        ('experiment = "table1"\npatience = -1', "patience must be > 0"),
        ('experiment = "table1"\ntolerance = -1', "tolerance must be >= 0"),
        ('experiment = "table1"\nnets = []', "nets must not be empty"),
        ('experiment = "table1"\nnets = ["dense-mnis"]', "did you mean 'dense-mnist'"),
        ('experiment = "table1"\nmethods = ["fetta"]', "did you mean 'feta'"),
        ('experiment = "table1"\nsparsity = ["much"]', "sparsity must be a number, got 'much'"),
        ('experiment = "table1"\nsparsity = 1.5', "sparsity must be"),
        ("experiment = ", "must be TOML"),
    ],
)
def test_bad_configurations(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load_plan(Table1, "table1", path, {})


def test_bad_requests(tmp_path):
    with pytest.raises(ConfigError, match="passes must be > 0"):
        reproduce("fig2", quick=True, out=tmp_path, passes=0)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write .*file/network.safetensors"):
        reproduce("fig2", quick=True, out=tmp_path, keep=tmp_path / "file", device="abacus")
    with pytest.raises(ConfigError, match=r"quick must go without a config, .* got .*fig2.toml"):
        reproduce("fig2", quick=True, config=ROOT / "configs" / "fig2.toml")
    assert not (tmp_path / "records.jsonl").exists()
    with pytest.raises(ConfigError, match="unknown experiment 'table2'; did you mean 'table1'"):
        reproduce("table2")
    with pytest.raises(FileError, match="cannot read"):
        reproduce("table1", config=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="unknown setting of fig2 'epochs'"):
        reproduce("fig2", epochs=3)
    with pytest.raises(ConfigError, match="device must be a device torch can use here, got 'abacus'"):
        reproduce("fig2", quick=True, out=tmp_path, device="abacus")


def test_a_cell_does_not_pay_for_garbage_of_others(folder):
    class Ring:
        def __init__(self):
            self.me = self

    plan = fig2.Fig2(
        nets=("dense-mnist",),
        seeds=1,
        methods=("threshold",),
        data="mnist-mini",
        networks=folder,
        device="cpu",
    )
    try:
        for _ in range(2):  # what was alive the first time is looked at the second time
            ring = Ring()
            alive = weakref.ref(ring)
            del ring
            subject.prepare(plan, fig2.cells(plan)[0])
            assert alive() is None
            assert gc.get_freeze_count() > 0
        kept = Ring()
        alive = weakref.ref(kept)
        subject.settle()
        del kept
        subject.settle()
        assert alive() is None
    finally:
        gc.unfreeze()


def test_plans_are_values():
    assert hash(fig2.Fig2()) == hash(fig2.Fig2())
    with pytest.raises(dataclasses.FrozenInstanceError):
        fig2.Fig2().seeds = 1
