"""Table 1 and Figure 2: the same path as the full run, on embedded data and networks made for the test."""

import ast
import dataclasses
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from feta.errors import ConfigError, FileError
from feta_lab import data as datasets
from feta_lab import networks, paper, store
from feta_lab.experiments import EXPERIMENTS, fig2, pruning, run
from feta_lab.experiments.fig3c import Fig3c
from feta_lab.experiments.plan import load_plan
from feta_lab.experiments.pruning import METHODS
from feta_lab.experiments.subject import network_path
from feta_lab.experiments.table1 import Table1
from feta_lab.records import identity, read

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
    small = {"networks": folder, "samples": 200, "methods": "threshold,feta:quality=fast,exact-obs:max-cost=1"}
    return {
        "table1": run("table1", quick=True, out=out / "table1", epochs=1, **small),
        "fig2": run("fig2", quick=True, out=out / "fig2", sparsity="0.9,0.95", **small),
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
    assert runs["table1"].table.splitlines()[-1].endswith("refused")


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
    (first,) = run("table1", quick=True, out=tmp_path / "table1", epochs=1, **small).records
    fig2._pruned.cache_clear()

    def never(*args, **kwargs):
        raise AssertionError("pruned again")

    monkeypatch.setattr(pruning, "prune", never)
    plain, refined = run("fig2", quick=True, out=tmp_path / "fig2", **small).records
    same = ("accuracy", "validation", "prune_seconds", "nonzeros", "relative_error", "status", "options")
    assert {key: plain[key] for key in same} == {key: first[key] for key in same}
    assert refined["nonzeros"] == first["nonzeros"]
    # Not another sparsity's, and not another dense network's.
    plan = fig2.Fig2(data="mnist-mini", networks=folder, device="cpu")
    dense = plan.subject(first["key"])
    other = dataclasses.replace(dense, dense={"validation": 50.0, "test": 50.0})
    assert pruning.find(tmp_path / "pruned", first["key"], dense) is not None
    assert pruning.find(tmp_path / "pruned", {**first["key"], "sparsity": 0.8}, dense) is None
    assert pruning.find(tmp_path / "pruned", first["key"], other) is None


def test_other_settings_are_other_cells():
    plans = (Table1(), Table1(epochs=3), Table1(samples=100), Table1(learning_rate=0.1))
    keys = {identity("table1", cell) for plan in plans for cell in plan.cells()}
    assert len(keys) == 4 * len(Table1().cells())


def bare(folder, *words):
    """The script as on a bare machine, whose workers lack the same libraries."""
    for name in ("jinja2", "cyclopts", "rich", "matplotlib", "pandas"):
        (folder / f"{name}.py").write_text("raise ImportError")
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    command = [sys.executable, str(ROOT / "benchmarks" / "bare.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


def test_without_the_command_line_libraries(tmp_path, folder):
    """With the worker that a budget needs."""
    small = ("quick=true", "methods=threshold", "samples=200", f"networks={folder}", "out=out")
    done = bare(tmp_path, "fig2", *small, "cell_budget=60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("records: out/records.jsonl\n")
    assert len(read(tmp_path / "out" / "records.jsonl")) == 2
    done = bare(tmp_path, "train", f"networks={folder}", "data=mnist-mini", "nets=dense-mnist", "seeds=1")
    assert (done.returncode, done.stdout) == (0, "")  # it is there already
    done = bare(tmp_path, "fig2", "sparsty=0.9")
    assert (done.returncode, done.stderr[:44]) == (1, "feta: unknown setting of fig2 'sparsty'; did")


def test_experiments_import_nothing_that_a_bare_machine_lacks():
    allowed = {"feta", "feta_lab", "torch", "numpy", "scipy", "safetensors", *sys.stdlib_module_names}
    heavy = {"feta_lab.page", "feta_lab.plots", "feta_lab.page.report", "feta_lab.cli", "feta.cli"}
    for path in (ROOT / "src" / "feta_lab" / "experiments").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert {name.partition(".")[0] for name in found} <= allowed, path.name
        assert not {".".join(name.split(".")[:2]) for name in found} & heavy, path.name


def test_the_command(tmp_path, folder):
    command = [
        sys.executable, "-m", "feta", "reproduce", "fig2", "--quick", "--methods", "threshold", "--device", "cpu",
        "--networks", str(folder), "--output", "b1", "--samples", "200",
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
    plan = load_plan(EXPERIMENTS[name], path, {})
    assert plan == EXPERIMENTS[name]()  # the full run is the default
    assert plan.cells()
    assert load_plan(EXPERIMENTS[name], None, {}, quick=True).cells()


def test_options_come_before_the_file_and_the_file_before_defaults(tmp_path):
    for kind in (Table1, fig2.Fig2):
        assert (kind().nets, kind().methods, kind().seeds) == (paper.NETS, METHODS, 3)
    path = tmp_path / "mine.toml"
    path.write_text('experiment = "table1"\nnets = ["dense-mnist"]\nseeds = 5\nout = "mine"\n')
    plan = load_plan(Table1, path, {"seeds": 2, "methods": "feta, lobs", "epochs": None})
    expected = Table1(nets=("dense-mnist",), seeds=2, methods=("feta", "lobs"), out=Path("mine"))
    assert plan == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('experiment = "fig2"', "experiment must be 'table1', got 'fig2'"),
        ("experiments = 3", "experiment must be 'table1', got None"),
        ("seed = 3", "unknown setting of table1 'seed'; did you mean 'seeds'?"),
        ('seeds = "three"', "seeds must be of type int, got 'three'"),
        ("seeds = true", "seeds must be of type int, got True"),
        ("seeds = 0", "seeds must be > 0 and finite, got 0"),
        ("jobs = 0", "jobs must be > 0 and finite, got 0"),
        ("cell_budget = inf", "must be TOML, got the number inf"),
        ("learning_rate = -1", "learning_rate must be > 0"),
        ("learning_rate = nan", "must be TOML, got the number nan"),
        ("batch_size = 0", "batch_size must be > 0"),
        ("patience = -1", "patience must be > 0"),
        ("tolerance = -1", "tolerance must be >= 0"),
        ("nets = []", "nets must not be empty"),
        ('nets = ["dense-mnis"]', "did you mean 'dense-mnist'"),
        ('methods = ["fetta"]', "did you mean 'feta'"),
        ('sparsity = ["much"]', "sparsity must be a number, got 'much'"),
        ("sparsity = 1.5", "sparsity must be"),
        ("experiment = ", "must be TOML"),
    ],
)
def test_bad_configurations(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text if text.startswith("experiment") else f'experiment = "table1"\n{text}')
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load_plan(Table1, path, {})


def test_bad_requests(tmp_path):
    with pytest.raises(ConfigError, match=r"fig2.passes must be >= 1, got 0"):
        run("fig2", quick=True, out=tmp_path, passes=0)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write .*file/network.safetensors"):
        run("fig2", quick=True, out=tmp_path, keep=tmp_path / "file", device="abacus")
    with pytest.raises(ConfigError, match=r"quick must go without a config, .* got .*fig2.toml"):
        run("fig2", quick=True, config=ROOT / "configs" / "fig2.toml")
    assert not (tmp_path / "records.jsonl").exists()
    with pytest.raises(ConfigError, match="unknown experiment 'table2'; did you mean 'table1'"):
        run("table2")
    with pytest.raises(FileError, match="cannot read"):
        run("table1", config=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="components must be of type int, got 'fifty'"):
        load_plan(Fig3c, None, {"components": "50,fifty"})
    with pytest.raises(ConfigError, match="unknown setting of fig2 'epochs'"):
        run("fig2", epochs=3)
    with pytest.raises(ConfigError, match="device must be a device torch can use here, got 'abacus'"):
        run("fig2", quick=True, out=tmp_path, device="abacus")


def test_a_cell_does_not_pay_for_garbage_of_others():
    class Ring:
        def __init__(self):
            self.me = self

    kept = Ring()
    alive = weakref.ref(kept)
    try:
        pruning.settle()
        assert gc.get_freeze_count() > 0
        del kept  # it was alive the first time, and is looked at the second time
        pruning.settle()
        assert alive() is None
    finally:
        gc.unfreeze()
