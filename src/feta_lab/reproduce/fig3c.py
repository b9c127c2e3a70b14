"""Figure 3c: CIFAR-10 projected on its first k principal components, and how well networks trained on that
stand the thresholding of their first layer.

The networks of one k are trained together by the short recipe of feta_lab.ensemble and judged on test images
under the same projection; their records are written before the next k begins. k is an upper bound on the
dimension of the data: `intrinsic_dimension`, by TwoNN over `samples` projected images, says what it really is, and
`energy` how much of the variance is left.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feta.engine.prune import prune
from feta.errors import ConfigError, ModelError
from feta_lab import data as datasets
from feta_lab import networks
from feta_lab.data import DataSet
from feta_lab.ensemble import Sprint, SprintEvent, train_together
from feta_lab.experiments import Record
from feta_lab.judge import accuracy
from feta_lab.projection import PrincipalBasis, cached_basis
from feta_lab.records import read
from feta_lab.reproduce.curves import curves
from feta_lab.reproduce.dimensions import dimension_of
from feta_lab.reproduce.experiment import Experiment, Table, Tell
from feta_lab.reproduce.fig3_layers import SPARSITIES, hidden_layers
from feta_lab.reproduce.plan import Plan
from feta_lab.workers import Cell

RECIPE = ("epochs", "batch_size", "learning_rate", "rows")


@dataclass(frozen=True)
class Fig3c(Plan):
    """The projections, the networks and their training. `jobs` is not used: the networks of a k share a process."""

    nets: tuple[str, ...] = ("conv-cifar",)
    seeds: int = 10  # networks per k
    components: tuple[int, ...] = (50, 100, 150, 200, 250, 300, 350)
    sparsity: tuple[float, ...] = SPARSITIES
    epochs: int = Sprint.epochs
    batch_size: int = Sprint.batch_size
    learning_rate: float = Sprint.learning_rate
    rows: int | None = None  # training images; by default all
    samples: int = 2000  # of which the intrinsic dimension is measured
    out: Path = Path("results/fig3c")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.nets) != 1:
            raise ConfigError(f"nets must name one network, got {list(self.nets)}")
        if min(self.components) < 1 or len(set(self.components)) < len(self.components):
            raise ConfigError(f"components must be different numbers >= 1, got {list(self.components)}")
        if self.rows is not None and self.rows < 2:
            raise ConfigError(f"rows must be >= 2, got {self.rows}")
        self.recipe()

    def recipe(self) -> Sprint:
        return Sprint(epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate)


def cells(plan: Fig3c) -> list[Cell]:
    """k outermost: the networks of one are trained when its first cell comes, and let go after its last."""
    (net,) = plan.nets
    first = hidden_layers(net)[0]
    return [
        {
            "net": net,
            "k": k,
            "network": number,
            "layer": first,
            "sparsity": share,
            **{name: getattr(plan, name) for name in RECIPE},
            "data_name": plan.data_of(net),
            "device": plan.where,
        }
        for k in plan.components
        for number in range(plan.seeds)
        for share in plan.sparsity
    ]


def begin(plan: Fig3c, tell: Tell) -> None:
    """Refuse to mix recipes in one file, and fit the projection, once for all k."""
    path = plan.out / "records.jsonl"
    mine = {name: getattr(plan, name) for name in RECIPE}
    for record in read(path) if path.exists() else []:
        other = {name: record.get(name) for name in RECIPE}
        if other != mine:
            raise ConfigError(
                f"{path} must hold networks of one recipe, got {other} beside {mine}; give another --out"
            )
    tell(f"principal components of {plan.data_of(plan.nets[0])}")
    _basis(plan)


def prepare(plan: Fig3c, cell: Cell) -> Mapping[str, Any]:
    """Train the networks of the cell's k, where the cell before was of another."""
    crew = _crew(plan, cell["k"])
    common = {"data": _data(plan).label, "energy": crew.energy, "intrinsic_dimension": crew.dimension}
    if crew.failure:
        return common  # the cell will say so
    dense = crew.dense[cell["network"]]
    return {**common, "dense_accuracy": dense["test"], "dense_validation": dense["validation"]}


def run_one(plan: Fig3c, cell: Cell) -> Mapping[str, Any]:
    """Threshold the first layer, judge the network."""
    crew = _crew(plan, cell["k"])
    if crew.failure:
        raise ModelError(crew.failure)
    result = prune(
        crew.models[cell["network"]],
        None,
        cell["sparsity"],
        "threshold",
        layers=[cell["layer"]],
        device=plan.where,
    )
    return {"accuracy": accuracy(result.model, crew.test, _data(plan).test.labels)}


@dataclass(frozen=True, eq=False)
class _Crew:
    """The networks of one k, what they score, and what they saw."""

    models: list[nn.Sequential]
    dense: list[dict[str, float]]
    test: Tensor
    energy: float
    dimension: float | None
    failure: str = ""


@functools.lru_cache(maxsize=1)
def _crew(plan: Fig3c, k: int) -> _Crew:
    data, basis = _data(plan), _basis(plan)
    project = functools.partial(basis.project, normalisation=data.normalisation, k=k, device=plan.where)
    train, labels = data.train.images[: plan.rows], data.train.labels[: plan.rows]
    images, validation, test = (project(part) for part in (train, data.validation.images, data.test.images))
    seen = dimension_of(images[: plan.samples].flatten(1))
    crew = functools.partial(_Crew, test=test, energy=basis.energy(k), dimension=seen)
    try:
        models = train_together(
            networks.preset(plan.nets[0]).specification,
            images,
            labels,
            range(plan.seeds),
            plan.recipe(),
            callback=functools.partial(_tell, k),
        )
    except ModelError as error:
        return crew(models=[], dense=[], failure=str(error))
    dense = [
        {
            "validation": accuracy(model, validation, data.validation.labels),
            "test": accuracy(model, test, data.test.labels),
        }
        for model in models
    ]
    return crew(models=models, dense=dense)


def _tell(k: int, event: SprintEvent) -> None:
    """Straight to stderr: the cell that trains may run in a process of its own."""
    left = (event.epochs - event.epoch) * event.seconds
    steps = ", ".join(filter(None, ("CUDA graph" if event.graph else "", event.note))) or "no CUDA graph"
    sys.stderr.write(
        f"k = {k}: epoch {event.epoch}/{event.epochs}, loss {statistics.mean(event.losses):.3f} "
        f"(worst {max(event.losses):.3f}), {event.seconds:.2f} s, {event.images_per_second:,.0f} images/s, "
        f"{left:.0f} s left, {steps}\n"
    )


@functools.lru_cache(maxsize=1)
def _data(plan: Fig3c) -> DataSet:
    return datasets.load(plan.data_of(plan.nets[0]), plan.data_dir)


@functools.lru_cache(maxsize=1)
def _basis(plan: Fig3c) -> PrincipalBasis:
    return cached_basis(_data(plan), max(plan.components), plan.networks, plan.where)


def label(cell: Cell) -> str:
    return f"k = {cell['k']}, network {cell['network']}, {100 * cell['sparsity']:g} %"


def table(records: Sequence[Record]) -> Table:
    """A row per k, a column per sparsity: mean test accuracy over the networks."""
    return curves(
        "Test accuracy in percent with the first layer pruned by thresholding, mean over the networks",
        records,
        ("net", "k"),
        ("dense_accuracy", "intrinsic_dimension"),
    )


EXPERIMENT = Experiment(
    name="fig3c",
    title="Figure 3c: networks trained on k principal components, their first layer pruned",
    plan=Fig3c,
    key_fields=("net", "k", "network", "layer", "sparsity", *RECIPE, "data_name"),
    cells=cells,
    prepare=prepare,
    run_one=run_one,
    table=table,
    label=label,
    timed=True,  # one process: a second would train the networks of a k again
    train=begin,
    quick={
        "nets": ("conv-mnist",),
        "data": "mnist-mini",
        "seeds": 2,
        "components": (5, 40),
        "sparsity": (0.0, 0.95),
        "epochs": 2,
        "batch_size": 50,
        "rows": 1000,
        "samples": 500,
        "networks": Path("results/quick/networks-short"),
        "out": Path("results/quick/fig3c"),
    },
)
