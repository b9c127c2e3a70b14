"""The benchmark: every method on the same networks, calibration rows, splits and threads.

    cell = (net, seed, sparsity, compensate, method): accuracy, relative error of each layer, seconds, floor

The floor is what a method that reads a Gram matrix cannot go below: one forward pass in which the matrix of
each pruned layer is added up, measured in the same run. Methods are interleaved, so that a slow minute of the
machine falls on all of them. A cell whose method cannot do it is recorded with the reason.
"""

from __future__ import annotations

import statistics as summary
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feta.allocation import check_allocation
from feta.calibration.inputs import Inputs
from feta.calibration.model import call, evaluating
from feta.engine.prune import prune
from feta.engine.run import Run
from feta.engine.select import select
from feta.errors import ConfigError
from feta.layers import LayerView
from feta.pruners import METHODS, make
from feta_lab import data as datasets
from feta_lab import networks
from feta_lab.judge import judge
from feta_lab.records import append, environment, read
from feta_lab.store import Network
from feta_lab.zoo import trained

KEY = ("net", "seed", "sparsity", "compensate", "method", "samples", "data_name", "device", "allocation")


@dataclass(frozen=True)
class Bench:
    """What to run."""

    nets: tuple[str, ...] = ("dense-mnist", "dense-fashion", "dense-cifar")
    methods: tuple[str, ...] = tuple(METHODS)
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.98)
    seeds: int = 3
    compensate: tuple[bool, ...] = (False, True)
    samples: int | None = None
    device: str = "cpu"
    allocation: str = "uniform"
    data: str | None = None  # instead of the nets' own
    data_dir: Path | None = None
    networks: Path = Path("results/networks")  # trained networks, made where missing
    timed: bool = True  # False where runs share the machine: their seconds are not to be compared

    def __post_init__(self) -> None:
        for net in self.nets:
            networks.preset(net)
        for method in self.methods:
            make(*parse_method(method))
        check_allocation(self.allocation)
        if self.seeds < 1:
            raise ConfigError(f"seeds must be >= 1, got {self.seeds}")


def run_bench(
    bench: Bench, records: Path, tell: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """All cells of the benchmark; those already in the records are not run again."""
    done = {_key(cell): cell for cell in (read(records) if records.exists() else [])}
    wanted = []
    for net in bench.nets:
        for seed in range(bench.seeds):
            where = (bench.samples, bench.data or networks.preset(net).data, bench.device, bench.allocation)
            keys = [
                (net, seed, s, c, m, *where)
                for c in bench.compensate
                for s in bench.sparsities
                for m in bench.methods
            ]
            wanted += keys
            missing = [key for key in keys if key not in done]
            if missing:
                for cell in _network_cells(bench, net, seed, missing, tell):
                    append(records, cell)
                    done[_key(cell)] = cell
    return [done[key] for key in wanted]


def _network_cells(
    bench: Bench, net: str, seed: int, keys: Sequence[tuple[Any, ...]], tell: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    tell(f"{net}, seed {seed}: network")
    network = trained(
        net, seed, bench.networks, data=bench.data, data_dir=bench.data_dir, device=bench.device
    )
    data = datasets.load(network.info.data, bench.data_dir)
    images = network.info.normalisation.apply(data.train.images, bench.device)
    model = network.model.to(bench.device)
    dense = judge(model, data, bench.device)
    floor = floor_seconds(network, images, bench.samples, seed)
    for _, _, sparsity, compensate, method, *_ in keys:
        tell(f"{net}, seed {seed}: {method} at {100 * sparsity:g} %")
        name, options = parse_method(method)
        cell: dict[str, Any] = {
            "net": net,
            "method": method,
            "sparsity": sparsity,
            "seed": seed,
            "compensate": compensate,
            "dense_accuracy": dense["test"],
            "dense_validation": dense["validation"],
            "floor_seconds": floor,
            "samples": bench.samples,
            "rows": len(images) if bench.samples is None else bench.samples,
            "data_name": data.name,
            "data": data.label,
            "device": bench.device,
            "allocation": bench.allocation,
            "timed": bench.timed,
            "environment": environment(),
        }
        try:
            result = prune(
                model,
                images,
                sparsity,
                name,
                options=options,
                compensate=compensate,
                allocation=bench.allocation,
                n_samples=bench.samples,
                seed=seed,
                device=bench.device,
            )
        except ConfigError as error:
            yield cell | {"accuracy": None, "relative_error": None, "seconds": None, "reason": str(error)}
            continue
        scores = judge(result.model, data, bench.device)
        layers, allocated = result.report.layers, result.report.allocation
        yield cell | {
            "accuracy": scores["test"],
            "validation": scores["validation"],
            "relative_error": [layer.relative_error for layer in layers],
            "seconds": result.report.seconds,
            "allocation_seconds": 0.0 if allocated is None else allocated.seconds,
            "status": [layer.status for layer in layers],
            "nonzeros": [layer.nonzeros for layer in layers],
            "options": result.report.options,
        }


def floor_seconds(
    network: Network, images: Tensor, samples: int | None, seed: int, repeats: int = 3
) -> float:
    """One forward pass over the data in which each pruned layer's Gram matrix is added up; a median."""
    run = Run.start(network.model, Inputs(images, n_samples=samples, seed=seed), None)
    names = [trace.name for trace in run.trace()]
    views = [LayerView(run.original.get_submodule(name), name) for name in select(run.original, names, None)]
    handles = [view.layer.register_forward_pre_hook(_adds_gram(view)) for view in views]
    times = []
    try:
        for _ in range(repeats):
            started = run.clock()
            with torch.no_grad(), evaluating(run.original):
                for batch in run.inputs or ():
                    call(run.original, batch, run.device, run.dtype)
            times.append(run.clock() - started)
    finally:
        for handle in handles:
            handle.remove()
    return summary.median(times)


def _adds_gram(view: LayerView) -> Callable[[Any, Any], None]:
    d_in = view.matrix().shape[0]
    H = torch.zeros(d_in, d_in, dtype=torch.float64, device=view.weight.device)

    def hook(module: Any, args: Any) -> None:
        for A in view.input_chunks(args[0], 0, 2**23):
            H.add_(A.t() @ A)

    return hook


def parse_method(label: str) -> tuple[str, dict[str, str]]:
    """A method and its options from a label: feta, feta:quality=best, feta-svrg:debias=false."""
    name, _, text = label.partition(":")
    pairs = [part.partition("=") for part in text.split("+") if part]
    return name, {option: value for option, _, value in pairs}


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    known = {"allocation": "uniform", **cell}  # records from before there was a choice
    return tuple(known.get(name) for name in KEY)  # what is not there is of another experiment


def table(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Over the seeds: mean and spread of accuracy, medians of the times; one row per net, sparsity and method.

    Only over the seeds that every method of a net and sparsity has been run on: the same networks for all.
    """
    shared = _shared_seeds(cells)
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[k] for k in ("net", "sparsity", "compensate", "method")), []).append(
            cell
        )
    rows = []
    for (net, sparsity, compensate, method), members in groups.items():
        seeds = shared[net, sparsity, compensate]
        ran = [cell for cell in members if cell["accuracy"] is not None and cell["seed"] in seeds]
        row: dict[str, Any] = {"net": net, "sparsity": sparsity, "compensate": compensate, "method": method}
        row["dense"] = summary.mean(cell["dense_accuracy"] for cell in ran or members)
        row["seeds"] = len(ran)
        if ran:
            accuracies = [cell["accuracy"] for cell in ran]
            row["accuracy"] = summary.mean(accuracies)
            row["low"], row["high"] = min(accuracies), max(accuracies)
            row["timed"] = all(cell.get("timed", True) for cell in ran)
            row["seconds"] = summary.median(cell["seconds"] for cell in ran)
            row["floor"] = summary.median(cell["floor_seconds"] for cell in ran)
            row["relative_error"] = summary.mean(summary.mean(cell["relative_error"]) for cell in ran)
        else:
            row["reason"] = members[0].get("reason", "")
        rows.append(row)
    return rows


def _shared_seeds(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], set[int]]:
    """For each net, sparsity and compensate: the seeds every method has, of those that could do it at all."""
    ran: dict[tuple[Any, ...], dict[str, set[int]]] = {}
    for cell in cells:
        if cell["accuracy"] is not None:
            group = ran.setdefault((cell["net"], cell["sparsity"], cell["compensate"]), {})
            group.setdefault(cell["method"], set()).add(cell["seed"])
    shared = {key: set.intersection(*methods.values()) for key, methods in ran.items()}
    return {(c["net"], c["sparsity"], c["compensate"]): set() for c in cells} | shared
