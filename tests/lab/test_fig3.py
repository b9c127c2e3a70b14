"""Figure 3: the same path as the full run, on embedded data and a network small enough for a test."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from feta.errors import ConfigError, ModelError
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.ensemble import train_together
from feta_lab.experiments import EXPERIMENTS, fig3c, subject
from feta_lab.experiments import run as run_experiment
from feta_lab.experiments.fig3_layers import dimension_of, layer_inputs
from feta_lab.experiments.fig3c import Fig3c, fit_basis
from feta_lab.experiments.subject import Source, network_path, trained
from feta_lab.judge import accuracy
from feta_lab.records import read

TINY = networks.Preset("tiny", "2C3-MP4-3C3-MP2-6FC-10SM", "mnist-mini")
LAYERS = {"net": "tiny", "seed": 0, "layers": 3, "data_name": "mnist-mini", "device": "cpu", "timed": True}
COMPONENTS = {"components": (2, 30), "seeds": 2, "epochs": 1, "rows": 500, "batch_size": 50, "samples": 100}


@pytest.fixture(scope="module")
def few():
    """A part of the embedded data, under its name."""
    data = datasets.load("mnist-mini")
    parts = {name: getattr(data, name).take(torch.arange(600)) for name in ("train", "validation", "test")}
    return replace(data, **parts)


@pytest.fixture(autouse=True)
def small(few, monkeypatch):
    monkeypatch.setitem(networks.PRESETS, "tiny", TINY)
    monkeypatch.setattr(datasets, "load", lambda name, data_dir=None: few)
    for cached in (subject.subject_of, subject.load_data, fig3c._basis, fig3c._crew):
        cached.cache_clear()


def run(name, folder, **changes):
    options = {"quick": True, "nets": "tiny", "networks": folder / "networks", "out": folder / name}
    return run_experiment(name, device="cpu", **options, **changes)


def thresholded(model, layer, share):
    """By sorting, as anyone would write it."""
    pruned = copy.deepcopy(model)
    weight = pruned.get_submodule(layer).weight
    order = weight.detach().abs().flatten().argsort(descending=True, stable=True)
    with torch.no_grad():
        weight.view(-1)[order[round(weight.numel() * (1 - share)) :]] = 0
    return pruned


# One layer at a time


@pytest.mark.parametrize("name", ["fig3a", "fig3b"])
def test_a_record_per_layer_and_sparsity(few, name, tmp_path):
    trained("tiny", 0, tmp_path / "networks", Source(epochs=1))  # here: other processes do not know the network
    done = run(name, tmp_path, sparsity="0,0.5,0.95", samples=200)
    assert read(done.path) == done.records
    keys = [(r["layer"], r["depth"], r["sparsity"]) for r in done.records]
    assert keys == [(n, d, s) for d, n in enumerate(("conv1", "conv2", "fc1"), 1) for s in (0.0, 0.5, 0.95)]
    model = store.load(network_path(tmp_path / "networks", "tiny", 0)).model
    test, labels = few.normalisation.apply(few.test.images, "cpu"), few.test.labels
    for record in done.records:
        assert {**LAYERS, "data": few.label}.items() <= record.items()
        pruned = thresholded(model, record["layer"], record["sparsity"])
        assert record["accuracy"] == accuracy(pruned, test, labels)
        assert record["dense_accuracy"] == accuracy(model, test, labels)
        assert record["nonzeros"] == round(record["weights"] * (1 - record["sparsity"]))
        assert (record["relative_error"] < 1e-6) == (record["sparsity"] == 0)
        assert 0 < record["intrinsic_dimension"] < 54
        assert record["intrinsic_dimension_maps"] > 0
    per_layer = {(r["layer"], r["intrinsic_dimension"], r["intrinsic_dimension_maps"]) for r in done.records}
    assert len(per_layer) == 3
    assert "conv2" in done.table


# Principal components


def test_a_record_per_k_network_and_sparsity(few, tmp_path):
    done = run("fig3c", tmp_path, **COMPONENTS)
    assert read(done.path) == done.records
    keys = [(r["k"], r["network"], r["sparsity"]) for r in done.records]
    assert keys == [(k, n, s) for k in (2, 30) for n in range(2) for s in (0.0, 0.95)]
    data = few
    basis = fit_basis(data.train.images, data.normalisation, 30, "cpu")
    images, test = (
        basis.project(part, data.normalisation, 30, "cpu") for part in (data.train.images[:500], data.test.images)
    )
    recipe = Fig3c(nets=("tiny",), epochs=1, batch_size=50).recipe()
    models = train_together(TINY.specification, images, data.train.labels[:500], [0, 1], recipe)
    for record in done.records[4:]:
        model = models[record["network"]]
        assert record["dense_accuracy"] == accuracy(model, test, data.test.labels)
        assert record["accuracy"] == accuracy(thresholded(model, "conv1", record["sparsity"]), test, data.test.labels)
        assert record["layer"] == "conv1"
        assert record["energy"] == pytest.approx(basis.energy(30))
    assert done.records[0]["intrinsic_dimension"] < 3 < done.records[-1]["intrinsic_dimension"]


def test_a_killed_run_goes_on_with_the_next_k(tmp_path, monkeypatch, capsys):
    prune, train = fig3c.prune, fig3c.train_together
    trained, count = [], 0

    def die(*given, **options):
        nonlocal count
        count += 1
        if count > 4:
            raise KeyboardInterrupt
        return prune(*given, **options)

    def note(*given, **options):
        trained.append(given[3])
        return train(*given, **options)

    monkeypatch.setattr(fig3c, "prune", die)
    monkeypatch.setattr(fig3c, "train_together", note)
    with pytest.raises(KeyboardInterrupt):
        run("fig3c", tmp_path, **COMPONENTS)
    records = read(tmp_path / "fig3c" / "records.jsonl")
    assert [r["k"] for r in records] == [2] * 4
    assert trained == [range(2)] * 2
    for cached in (fig3c._crew, fig3c._basis):
        cached.cache_clear()
    monkeypatch.setattr(fig3c, "prune", prune)
    done = run("fig3c", tmp_path, **COMPONENTS)
    assert len(trained) == 3  # the second k again, the first not
    assert done.records[:4] == records
    assert "k = 30: epoch 1/1, loss" in capsys.readouterr().err


def test_training_that_fails_is_recorded_once_per_cell(tmp_path, monkeypatch):
    tries = []

    def fail(*given, **options):
        tries.append(given)
        raise ModelError("training must keep a finite loss, got nan")

    monkeypatch.setattr(fig3c, "train_together", fail)
    done = run("fig3c", tmp_path, **COMPONENTS)
    assert len(tries) == 2
    for record in done.records:
        assert (record["accuracy"], record["failure"]) == (None, "refused")
        assert record["reason"] == "training must keep a finite loss, got nan"


# Inputs of layers


def test_rows_are_patches_of_their_image():
    model = networks.build("2C3-MP2-3C3-4FC-3SM", (1, 8, 8), seed=0)
    images = torch.randn(70, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    rows, maps = layer_inputs(model, "conv2", images)
    with torch.no_grad():
        x = model.pool1(model.relu_conv1(model.conv1(images)))
    torch.testing.assert_close(maps, x.flatten(1))
    patches = F.unfold(F.pad(x, [1, 1, 1, 1]), 3).transpose(1, 2)
    assert rows.shape == (70, 18)
    assert all(bool((own == row).all(1).any()) for row, own in zip(rows, patches, strict=True))
    dense, whole = layer_inputs(model, "fc1", images)
    assert torch.equal(dense, whole)


def test_dimension_of():
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(1500, 2, generator=generator) @ torch.randn(2, 40, generator=generator)
    assert dimension_of(plane) == pytest.approx(2, abs=0.2)
    assert dimension_of(plane.repeat(2, 1)) == dimension_of(plane)  # copies say nothing
    assert dimension_of(torch.zeros(50, 4)) is None


# Plans


def test_the_grids_are_the_papers():
    cells = {name: EXPERIMENTS[name]().cells() for name in ("fig3a", "fig3b", "fig3c")}
    assert {len(fig) for fig in cells.values()} == {3 * 4 * 12, 3 * 8 * 12, 7 * 10 * 12}
    assert {cell["layer"] for cell in cells["fig3b"]} == {f"conv{i}" for i in range(1, 7)} | {"fc1", "fc2"}
    assert {cell["k"] for cell in cells["fig3c"]} == set(range(50, 351, 50))
    assert {cell["layer"] for cell in cells["fig3c"]} == {"conv1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nets": ("conv-cifar", "conv-mnist")}, "nets must name one network"),
        ({"components": (50, 50)}, "components must be different numbers >= 1"),
        ({"components": (0,)}, "components must be different numbers >= 1"),
        ({"rows": 1}, "rows must be >= 2, got 1"),
        ({"batch_size": 0}, "batch_size must be > 0 and finite, got 0"),
    ],
)
def test_bad_plans(changes, message):
    with pytest.raises(ConfigError, match=message):
        Fig3c(**changes)
