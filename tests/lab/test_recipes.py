"""The benchmark of recipes: every cell once, on the same rows, and tables that never compare different networks."""

import importlib
import itertools
import sys
from pathlib import Path

import pytest
import torch

from feta.engine import recipe as engine
from feta.engine.recipe import EFFORTS
from feta.errors import ConfigError, DataError
from feta_lab import data as datasets
from feta_lab import networks, store
from feta_lab.experiments.subject import network_path
from feta_lab.networks import PRESETS
from feta_lab.records import read

# Untrained networks and few samples: that layers need a look is no news here.
pytestmark = pytest.mark.filterwarnings("ignore::feta.engine.finish.PruneWarning")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
recipes, means, recipes_table = map(importlib.import_module, ("recipes", "recipes_means", "recipes_table"))


# Cells


def test_the_whole_plan_is_every_combination_once_and_recipes_change_fastest():
    cells = recipes.Recipes(device="cpu").cells()
    assert len(cells) == 9 * 3 * 4 * 2 * 15
    assert len({tuple(cell.items()) for cell in cells}) == len(cells)
    assert set(recipes.NETS) == set(PRESETS)
    for first in range(0, len(cells), 15):
        block = cells[first : first + 15]
        assert [cell["recipe"] for cell in block] == list(recipes.RECIPES)
        assert len({tuple(v for k, v in cell.items() if k != "recipe") for cell in block}) == 1
    assert [net for net, _ in itertools.groupby(cell["net"] for cell in cells)] == list(recipes.NETS)


def test_recipes_are_three_methods_two_allocations_with_and_without_refinement_and_the_efforts():
    named = [recipe for name, recipe in recipes.RECIPES.items() if name not in EFFORTS]
    combinations = {(one["method"], one["allocation"], "refine" in one) for one in named}
    assert combinations == set(
        itertools.product(("threshold", "alps", "feta"), ("uniform", "sensitivity"), (False, True))
    )
    assert all(one["compensate"] for one in named)
    assert all(recipes.RECIPES[effort] == {"method": effort} for effort in EFFORTS)


def test_rows_are_drawn_by_the_seed_without_repeats_and_the_fewer_are_among_the_more():
    images = torch.arange(50)
    few, more = recipes.rows_of(images, 10, 3).tolist(), recipes.rows_of(images, 20, 3).tolist()
    assert len(set(more)) == 20
    assert set(few) < set(more)
    assert few != list(range(10))
    assert few == recipes.rows_of(images, 10, 3).tolist()
    assert few != recipes.rows_of(images, 10, 4).tolist()
    assert recipes.rows_of(images, "all", 3) is images
    with pytest.raises(DataError, match="at most 50"):
        recipes.rows_of(images, 51, 3)


@pytest.mark.parametrize("wrong", [{"recipes": ("fetta",)}, {"rows": ("few",)}, {"rows": ("0",)}])
def test_what_cannot_be_run_is_said_at_once(wrong):
    with pytest.raises(ConfigError, match=r"fetta|rows must be"):
        recipes.Recipes(**wrong)


# Runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An untrained network where the benchmark looks for trained ones."""
    folder, data = tmp_path_factory.mktemp("networks"), datasets.load("mnist-mini")
    model = networks.build("60FC-60FC-10SM", data.shape, seed=0)
    info = store.NetworkInfo("60FC-60FC-10SM", data.shape, "mnist-mini", data.normalisation, "dense-mnist", 0)
    store.save(store.Network(model, info), network_path(folder, "dense-mnist", 0, "mnist-mini"))
    return folder


def test_a_run_records_each_cell_once_with_what_it_lost_and_took(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(engine, "STEPS", 100)
    words = f"--nets dense-mnist --seeds 1 --rows 60,1000000 --sparsity 0.9 --data mnist-mini --networks {folder}"
    words += f" --device cpu --jobs 1 --out {tmp_path} --recipes threshold-sensitivity,fast,default"
    assert recipes.main(words.split()) == recipes.main(words.split()) == 0
    assert "6 cells, 3 of them failed" in capsys.readouterr().out
    records = read(tmp_path / "records.jsonl")
    done, failed = records[:3], records[3:]
    assert [one["recipe"] for one in done] == [one["recipe"] for one in failed]
    assert [one["recipe"] for one in done] == ["threshold-sensitivity", "fast", "default"]
    for one in done:
        assert one["kind"] == "recipes"
        assert one["key"].items() <= one.items()
        assert (one["rows"], one["row_count"], one["timed"]) == (60, 60, True)
        assert one["lost"] == pytest.approx(one["dense_accuracy"] - one["accuracy"])
        assert one["validation_lost"] == pytest.approx(one["dense_validation"] - one["validation"])
        assert one["measured_sparsity"] == pytest.approx(0.9, abs=1e-3)
        assert one["seconds"] >= sum(one["parts"].values()) > 0
        assert one["environment"]["commit"]
    stages = [[stage["name"] for stage in one["stages"]] for one in done]
    assert stages == [[], ["layer by layer"], ["layer by layer", "survivors fitted", "moving support"]]
    assert all(one["failure"] == "refused" and "at most" in one["reason"] for one in failed)
    assert "| failed |" in recipes_table.tables(records)


# Tables


def record(recipe, lost, net="dense-mnist", seed=0, rows=200, sparsity=0.95, device="cpu", timed=True, seconds=2.0):
    key = {"net": net, "data_name": PRESETS[net].data, "device": device, "seed": seed}
    key |= {"rows": rows, "sparsity": sparsity, "recipe": recipe}
    about = {
        "timed": timed,
        "environment": {"processor": "a processor", "threads": "1", "gpu": "a GPU", "commit": "0123abcdef"},
    }
    if lost is None:
        return {"kind": "recipes", "key": key, **key, "accuracy": None, "failure": "budget", **about}
    numbers = {
        "lost": lost,
        "validation_lost": lost + 1,
        "seconds": seconds,
        "row_count": 60 if rows == "all" else rows,
    }
    return {"kind": "recipes", "key": key, **key, **numbers, **about}


def lines(text):
    """The table's lines by their first word, without spaces around the cells."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in cells}


def test_a_mean_is_over_what_every_recipe_finished_and_networks_count_the_same():
    records = [record("feta", 1.0), record("feta", 3.0, seed=1), record("feta", 6.0, "dense-fashion")]
    records += [record("feta", 100.0, "conv-mnist"), record("alps", None, "conv-mnist")]
    records += [record("alps", 2.0), record("alps", 2.0, seed=1), record("alps", 7.0, "dense-fashion", seconds=9.0)]
    text = recipes_table.table(records, "lost")
    assert lines(text) == {
        "at 95 %": ["200 rows", "median seconds at 95 %"],
        "---": ["---", "---"],
        "alps": ["4.50", "2"],
        "feta": ["**4.00**", "2"],
        "cells": ["3 of 4", ""],
    }
    assert text.endswith("Every mean is over dense-fashion (seed 0); dense-mnist (seeds 0, 1).")
    assert lines(recipes_table.table(records, "validation_lost"))["feta"] == ["**5.00**", "2"]


def test_columns_with_other_networks_are_said():
    records = [record(r, 1.0, seed=s) for r in ("fast", "alps") for s in (0, 1)]
    records += [record(r, 2.0, rows="all") for r in ("fast", "alps")] + [record("fast", 2.0, seed=1, rows="all")]
    text = recipes_table.table(records, "lost")
    assert lines(text)["cells"] == ["2", "1 of 2", ""]
    said = "not over the same networks. all rows at 95 %: dense-mnist (seed 0). All others: dense-mnist (seeds 0, 1)."
    assert said in text


def test_a_recipe_that_finished_nothing_takes_no_cell_from_the_others():
    records = [record("fast", 1.0), record("best", None), record("fast", 2.0, sparsity=0.98), record("alps", 1.001)]
    found = lines(recipes_table.table(records, "lost"))
    assert found['`effort="best"`'] == ["failed / –", "–"]
    assert found['`effort="fast"`'] == ["**1.00** / **2.00**", "2"]
    assert found["alps"] == ["**1.00** / –", "–"]  # what prints the same is the best as well; no cell at 98 %
    assert found["cells"] == ["1 / 1", ""]


def test_seconds_of_cells_that_ran_beside_others_are_not_shown():
    found = lines(recipes_table.table([record("fast", 1.0, timed=False), record("alps", 1.0)], "lost"))
    assert found['`effort="fast"`'] == ["**1.00**", "–"]
    found = lines(recipes_table.table([record("fast", 1.0, timed=False)], "lost"))
    assert (found["at 95 %"], found['`effort="fast"`']) == (["200 rows"], ["**1.00**"])


def test_networks_of_other_data_are_other_networks():
    other = record("alps", 5.0) | {"data_name": "mnist-mini"}
    assert means.column([record("fast", 1.0), other], "lost").members == frozenset()


def test_a_picture_of_different_networks_is_not_drawn():
    with pytest.raises(SystemExit, match="needs networks"):
        recipes_table.picture([record("fast", 1.0), record("best", 1.0, "conv-mnist")], "lost", "recipes")


def test_the_picture_is_over_networks_that_are_in_all_its_points(tmp_path):
    places = itertools.product(("fast", "default"), (200, "all"), (0.95, 0.98))
    found = [record(recipe, 1.0, rows=rows, sparsity=share) for recipe, rows, share in places]
    found += [record(recipe, 9.0, "conv-cifar") for recipe in ("fast", "default")] + [record("alps", 3.0)]
    figure = recipes_table.picture(found, "lost", "recipes")
    assert [chart.title for chart in figure.charts] == [f"{n} % zeros, mean of 1 network" for n in (95, 98)]
    for chart in figure.charts:
        assert list(chart.lines) == ["feta, default call", "feta, layer by layer"]
        assert all([(p.x, p.y) for p in points] == [(60, 1.0), (200, 1.0)][::-1] for points in chart.lines.values())
        assert chart.ticks == {200: "200", 60: "all"}
    assert figure.same_y
    figure.save(tmp_path)
    assert (tmp_path / "recipes.png").stat().st_size > 1000
    assert "<!-- all -->" in (tmp_path / "recipes.svg").read_text()  # letters are drawn; a comment says which
