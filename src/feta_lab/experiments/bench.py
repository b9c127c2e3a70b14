"""The benchmark: every method on the same networks, calibration rows, splits and threads.

    cell = (net, seed, compensate, allocation, sparsity, method): accuracy, relative errors, seconds, floor

The floor is the least time of a method that reads a Gram matrix: one forward pass in which the matrix of each
pruned layer is added up, measured in the same run. Methods are interleaved, so that a slow minute of the machine
falls on all of them. A cell that its method refuses is recorded with the reason.
"""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from feta.allocation import ALLOCATIONS, make_allocation
from feta.calibration.inputs import Inputs
from feta.calibration.model import call, evaluating
from feta.calibration.tap import Tap
from feta.engine.run import Run
from feta.engine.select import select
from feta.engine.settings import Settings
from feta.layers import LayerView
from feta.pruners import METHODS
from feta_lab.experiments.harness import Cell
from feta_lab.experiments.pruning import PruningPlan
from feta_lab.experiments.subject import Subject
from feta_lab.networks import PRESETS
from feta_lab.records import Record, groups, summary


@dataclass(frozen=True)
class Bench(PruningPlan):
    """What to run. With several jobs, seconds do not compare and are recorded as such."""

    nets: tuple[str, ...] = ("dense-mnist", "dense-fashion", "dense-cifar")
    methods: tuple[str, ...] = tuple(METHODS)
    sparsity: tuple[float, ...] = (0.8, 0.9, 0.95, 0.98)
    compensate: tuple[bool, ...] = (False, True)
    allocation: tuple[str, ...] = ("uniform",)
    layers: tuple[str, ...] | None = None  # patterns such as conv*; by default hidden fully connected layers

    name: ClassVar[str] = "bench"
    timed: ClassVar[bool] = False
    lines: ClassVar[tuple[str, ...]] = (*PruningPlan.lines, "compensate")
    columns: ClassVar[tuple[str, ...]] = ("dense_accuracy", "accuracy", "relative_error", "seconds", "floor_seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        for allocation in self.allocation:
            make_allocation(allocation)

    def cells(self) -> list[Cell]:
        layers = None if self.layers is None else list(self.layers)
        cells = self.matches(compensate=self.compensate, allocation=self.allocation)
        return [cell | {"layers": layers} for cell in cells]

    def prepare(self, cell: Cell) -> Mapping[str, Any]:
        common, subject = super().prepare(cell), self.subject(cell)
        floor = _floor(subject, cell["samples"], cell["seed"])
        return {**common, "floor_seconds": floor, "rows": cell["samples"] or len(subject.images)}

    def run(self, cell: Cell) -> Mapping[str, Any]:
        """Prune and judge."""
        result, fields = self.prune(cell, **{name: cell[name] for name in ("layers", "compensate", "allocation")})
        report, shared = result.report, result.report.allocation
        fields |= {"seconds": report.seconds, "layer_seconds": [layer.seconds for layer in report.layers]}
        fields |= {"allocation_seconds": shared.seconds if shared else 0.0, "kept": shared.kept if shared else {}}
        return {**self.subject(cell).scores(result.model), **fields}


@dataclass(frozen=True)
class Allocation(Bench):
    """Which allocation is best: each of them, on the same networks, with compensation."""

    nets: tuple[str, ...] = tuple(PRESETS)
    methods: tuple[str, ...] = ("threshold", "alps", "feta")
    sparsity: tuple[float, ...] = (0.9, 0.95, 0.98)
    compensate: tuple[bool, ...] = (True,)
    allocation: tuple[str, ...] = tuple(ALLOCATIONS)

    name: ClassVar[str] = "allocation"

    lines: ClassVar[tuple[str, ...]] = PruningPlan.lines
    columns: ClassVar[tuple[str, ...]] = ("dense_accuracy",)
    across: ClassVar[str] = "allocation"


@dataclass(frozen=True)
class Timing(Bench):
    """Seconds of feta and ALPS on every network. The first round warms the device up; read a later one."""

    nets: tuple[str, ...] = tuple(PRESETS)
    methods: tuple[str, ...] = ("feta", "alps")
    sparsity: tuple[float, ...] = (0.9,)
    seeds: int = 1
    compensate: tuple[bool, ...] = (False,)
    rounds: int = 2

    name: ClassVar[str] = "timing"
    timed: ClassVar[bool] = True
    lines: ClassVar[tuple[str, ...]] = ("round", "method", "net")

    def cells(self) -> list[Cell]:
        cells = super().cells()
        return [cell | {"round": number} for number in range(self.rounds) for cell in cells]


@functools.lru_cache(maxsize=1)
def _floor(subject: Subject, samples: int | None, seed: int) -> float:
    """The floor of a subject, measured once for all its cells."""
    return floor_seconds(subject.model, subject.images, samples, seed)


def floor_seconds(model: nn.Module, images: Tensor, samples: int | None, seed: int, repeats: int = 3) -> float:
    """One forward pass over the data in which each pruned layer's Gram matrix is added up; a median."""
    run = Run.start(model, Inputs(images, n_samples=samples, seed=seed), Settings())
    chosen = select(run.original, run.layers, None)
    traces, times = [trace for trace in run.layers if trace.name in chosen], []
    views = {trace.name: LayerView.of(run.original, trace.name, trace.operator) for trace in traces}
    sums = {
        name: torch.zeros(view.d_in, view.d_in, dtype=torch.float64, device=view.weight.device)
        for name, view in views.items()
    }
    tap = Tap(run.original, traces)
    for _ in range(repeats):
        started = run.clock()
        with evaluating(run.original):
            for batch in run.samples or ():
                caught = tap.run(functools.partial(call, run.original, batch), outputs=False, shortcuts=False)
                for name, (seen, *_) in caught.items():
                    for part in views[name].chunks(seen.x, 2**23):
                        A = views[name].input_rows(seen.x[part])
                        sums[name].add_(A.t() @ A)
        times.append(run.clock() - started)
    return statistics.median(times)


def table(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row per net, sparsity, compensation and method: means of accuracies and errors, medians of times.

    Only over the seeds that every method of a net and sparsity was run on: the same networks for all.
    """
    rows = []
    for (net, sparsity, compensate), rivals in groups(records, "net", "sparsity", "compensate").items():
        ran = groups((record for record in rivals if record["accuracy"] is not None), "method")
        seeds = set.intersection(*({record["seed"] for record in mine} for mine in ran.values())) if ran else set()
        for (method,), members in groups(rivals, "method").items():
            mine = [record for record in ran.get((method,), []) if record["seed"] in seeds]
            row = {"net": net, "sparsity": sparsity, "compensate": compensate, "method": method, "seeds": len(mine)}
            row["dense"] = summary(mine or members, "dense_accuracy")
            if mine:
                accuracies = [record["accuracy"] for record in mine]
                row |= {"low": min(accuracies), "high": max(accuracies), "floor": summary(mine, "floor_seconds")}
                row |= {name: summary(mine, name) for name in ("accuracy", "seconds", "relative_error")}
                row["timed"] = all(record.get("timed", True) for record in mine)
            rows.append(row if mine else row | {"reason": members[0].get("reason", "")})
    return rows
