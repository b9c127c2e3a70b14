"""Recipes against each other, from few rows to all of them: points lost, and the seconds that the user waited.

    PYTHONPATH=src python benchmarks/recipes.py --networks NETWORKS --data-dir DATA --device cuda
    PYTHONPATH=src python benchmarks/recipes.py --nets dense-mnist --seeds 1 --rows 200 --sparsity 0.98    # a try

A recipe is threshold, alps or feta with compensation, as it is or with -sensitivity (allocation) and -refined
(refinement) behind its name; or an effort: fast, default or best. NETWORKS holds trained networks; those that are not
there are trained first. Needs torch, numpy, scipy and safetensors.

A cell has a record in OUT/records.jsonl and is not run again; one that raises has a record with the reason. All
recipes of a cell get the same rows: training images drawn by the cell's seed, the fewer always among the more. Choose
by `validation_lost`, and report `lost`, which is of the test half.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from measure import measured_prune, tell
from torch import Tensor, nn

import feta
from feta.engine.recipe import EFFORTS
from feta.errors import ConfigError, DataError, FetaError, unknown_name
from feta.layers import weight_of
from feta_lab.experiments.harness import Cell, label, run_cells
from feta_lab.experiments.plan import Plan, load_plan
from feta_lab.experiments.pruning import WARM_ROWS, settle, warm_up_method
from feta_lab.experiments.subject import Subject

# The cheapest first.
NETS = ("dense-mnist", "dense-fashion", "dense-mnist-wide", "dense-cifar", "dense-fashion-wide")
NETS += ("dense-cifar-wide", "conv-mnist", "conv-fashion", "conv-cifar")
METHODS = ("threshold", "alps", "feta")
ALL = "all"


def every_recipe() -> dict[str, dict[str, Any]]:
    """By name what is passed to feta.prune; an effort stands where a method would."""
    found: dict[str, dict[str, Any]] = {}
    for method, allocation, refined in itertools.product(METHODS, ("uniform", "sensitivity"), (False, True)):
        name = method + ("" if allocation == "uniform" else f"-{allocation}") + ("-refined" if refined else "")
        refine = {"refine": feta.Refinement()} if refined else {}
        found[name] = {"method": method, "allocation": allocation, "compensate": True, **refine}
    return found | {effort: {"method": effort} for effort in EFFORTS}


RECIPES = every_recipe()


@dataclass(frozen=True)
class Recipes(Plan):
    """What to run."""

    nets: tuple[str, ...] = NETS
    sparsity: tuple[float, ...] = (0.95, 0.98)
    rows: tuple[str, ...] = ("200", "1000", "5000", ALL)
    recipes: tuple[str, ...] = tuple(RECIPES)

    name: ClassVar[str] = "recipes"

    def __post_init__(self) -> None:
        super().__post_init__()
        for recipe in self.recipes:
            if recipe not in RECIPES:
                raise unknown_name("recipe", recipe, RECIPES)
        for rows in self.rows:
            if rows != ALL and not (rows.isdecimal() and int(rows) > 0):
                raise ConfigError(f"rows must be a number > 0 or '{ALL}', got '{rows}'")

    def cells(self) -> list[Cell]:
        """Every cell; recipes change fastest, so that a run that is cut short can be compared."""
        axes: dict[str, Iterable[Any]] = {"seed": range(self.seeds)}
        axes["rows"] = [rows if rows == ALL else int(rows) for rows in self.rows]
        axes |= {"sparsity": self.sparsity, "recipe": self.recipes}
        return [cell for net in self.nets for cell in self.grid(net, {}, **axes)]

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        subject = self.subject(cell)
        warm_up(subject)
        for method in METHODS:
            warm_up_method(method, self.where)
        settle()
        return subject.fields

    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Prune and judge."""
        subject, recipe = self.subject(cell), RECIPES[cell["recipe"]]
        images = rows_of(subject.images, cell["rows"], cell["seed"])
        pruned, found = measured_prune(subject.model, images, sparsity=cell["sparsity"], seed=cell["seed"], **recipe)
        scores = subject.scores(pruned)
        lost = {
            "lost": subject.dense["test"] - scores["accuracy"],
            "validation_lost": subject.dense["validation"] - scores["validation"],
            "row_count": len(images),
            "measured_sparsity": zeros(pruned, found["relative_error"]),
        }
        return {**found, **scores, **lost}


def rows_of(images: Tensor, rows: int | str, seed: int) -> Tensor:
    """So many images, drawn at random."""
    if rows == ALL:
        return images
    if int(rows) > len(images):
        raise DataError(f"rows must be at most {len(images)}, the training images there are, got {rows}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[: int(rows)].to(images.device)]


def zeros(model: nn.Module, layers: Iterable[str]) -> float:
    """The share of zeros, counted in the weights and not read in the report."""
    weights = [weight_of(model, name) for name in layers]
    return 1 - sum(int(weight.count_nonzero()) for weight in weights) / sum(weight.numel() for weight in weights)


@functools.lru_cache(maxsize=1)
def warm_up(subject: Subject) -> None:
    """Run both kinds of fits on a few rows, so that no cell pays for loading libraries and kernels."""
    few, how = subject.images[:WARM_ROWS], {"allocation": "sensitivity", "compensate": True}
    for support in ("fixed", "moving"):
        feta.prune(subject.model, few, 0.9, "wanda", **how, refine=feta.Refinement(3, support))


def run_and_tell(plan: Recipes, cell: Cell) -> Mapping[str, Any]:
    """A cell's numbers are seen at once, not only when all are done."""
    found = plan.run(cell)
    tell(f"{label(cell)}: {found['validation_lost']:.2f} points lost on validation, {found['seconds']:.2f} s")
    return found


def parser() -> argparse.ArgumentParser:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--nets", help=f"by default {','.join(NETS)}")
    ask.add_argument("--seeds", help="networks of each kind; 3 by default")
    ask.add_argument("--sparsity", help="0.95,0.98 by default")
    ask.add_argument("--rows", help=f"200,1000,5000,{ALL} by default")
    ask.add_argument("--recipes", help=f"by default {','.join(RECIPES)}")
    ask.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    ask.add_argument("--data", help="a data set instead of the networks' own")
    ask.add_argument("--data-dir", help="where the data sets lie")
    ask.add_argument("--networks", help="where trained networks lie; results/networks by default")
    ask.add_argument("--out", help="results/recipes by default")
    ask.add_argument("--jobs", help="cells at once; their seconds do not compare then")
    ask.add_argument("--cell-budget", help="seconds after which a cell is stopped")
    ask.add_argument("--no-resume", dest="resume", action="store_false", help="run all cells again")
    return ask


def main(words: list[str]) -> int:
    try:
        plan = load_plan(Recipes, None, vars(parser().parse_args(words)))
        plan.check()
        plan.train(tell)
        how = {"resume": plan.resume, "jobs": plan.jobs, "cell_budget": plan.cell_budget}
        run = functools.partial(run_and_tell, plan)
        found = run_cells(plan.name, plan.cells(), run, plan.records, prepare=plan.prepare, tell=tell, **how)
    except FetaError as error:
        tell(f"recipes.py: {error}")
        return 1
    failed = sum("failure" in record for record in found)
    tell(f"{len(found)} cells, {failed} of them failed; records: {plan.records}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
