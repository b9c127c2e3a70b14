"""Records as the experiments write them, with numbers made up: good enough to draw, never to believe."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Cells = list[dict[str, Any]]

NETS = {
    "dense-mnist": 98.2, "dense-fashion": 88.3, "dense-cifar": 50.2,
    "conv-mnist": 99.4, "conv-fashion": 92.6, "conv-cifar": 77.8,
}  # fmt: skip
# Share of the dense accuracy kept in a dense network, seconds to prune.
METHODS = {
    "threshold": (0.75, 0.002), "net-trim": (0.82, 160.0), "lobs": (0.70, 1.1), "corenet": (0.45, 0.6),
    "feta": (0.96, 2.1), "alps": (0.95, 1.0), "exact-obs": (0.93, 40.0), "sparsegpt": (0.78, 0.7),
    "wanda": (0.77, 0.3),
}  # fmt: skip
MACHINE = {"feta": "0.1", "commit": "unknown", "python": "3.11.7", "torch": "2.13", "processor": "Xeon", "gpu": ""}
# Fields that name a cell, whatever its kind.
KEY = (
    "net", "data_name", "device", "method", "seed", "sparsity", "samples", "refine", "passes", "compensate", "layer",
    "k", "network", "max_epochs", "tolerance", "recipe", "rows",
)  # fmt: skip
SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


def everywhere(net: str, **fields: Any) -> dict[str, Any]:
    device = "cuda" if net.startswith("conv") else "cpu"
    common = {"data": net.partition("-")[2].upper(), "data_name": net.partition("-")[2], "device": device}
    return {"net": net, **common, "timed": True, "environment": MACHINE, **fields}


def pruned(kind: str, net: str, method: str, seed: int, dice: random.Random) -> dict[str, Any]:
    """What table1 and fig2 have in common; conv networks lose a tenth as much."""
    kept, seconds = METHODS[method]
    lost = (1 - kept) * (0.1 if net.startswith("conv") else 1)
    dense = NETS[net] + dice.uniform(-0.2, 0.2)
    cell = everywhere(net, kind=kind, method=method, seed=seed, sparsity=0.9, dense_accuracy=dense)
    cell["accuracy"] = dense * (1 - lost * dice.uniform(0.9, 1.1))
    cell["prune_seconds"] = seconds * (3 if net.startswith("conv") else 1) * dice.uniform(0.9, 1.2)
    return cell | {"relative_error": [lost, 1.5 * lost]}


def cells(kind: str, dice: random.Random) -> Iterator[dict[str, Any]]:
    """Every network, seed and method."""
    for net, seed, method in itertools.product(NETS, range(3), METHODS):
        yield pruned(kind, net, method, seed, dice)


def table1(dice: random.Random) -> Cells:
    records = []
    for cell in cells("table1", dice):
        if (cell["net"], cell["method"]) == ("conv-cifar", "exact-obs"):
            why = {"reason": "stopped after 600 s", "failure": "budget"}
            records.append(cell | {"accuracy": None, "prune_seconds": None} | why)
            continue
        epochs = round((cell["dense_accuracy"] - cell["accuracy"]) / 3, 2)
        retrained = {"retrain_seconds": 4 * epochs + 0.1, "epochs": epochs}
        retrained["retrained_accuracy"] = cell["dense_accuracy"] - dice.uniform(0, 0.3)
        back = (cell["net"], cell["method"]) != ("dense-cifar", "corenet")
        records.append(cell | retrained | {"recovered": back})
    return records


def fig2(dice: random.Random) -> Cells:
    records = []
    for cell in cells("fig2", dice):
        if (cell["net"], cell["method"]) != ("conv-cifar", "exact-obs"):
            better = cell["dense_accuracy"] - 0.4 * (cell["dense_accuracy"] - cell["accuracy"])
            refined = {"refine": True, "refine_seconds": 6.0, "accuracy": better, "relative_error": None}
            records += [cell | {"refine": False, "refine_seconds": 0.0}, cell | refined]
    return records


def layer_cells(net: str, layers: int, dice: random.Random, seeds: int = 2, base: float = 1.6) -> Cells:
    """Losses that grow by `base` with every layer behind the pruned one."""
    cells = []
    kind, dense = "fig3b" if net == "conv-cifar" else "fig3a", NETS[net]
    for seed, depth, share in itertools.product(range(seeds), range(1, layers + 1), SHARES):
        behind, place = layers - depth, {"layer": f"conv{depth}", "depth": depth, "layers": layers}
        cell = everywhere(net, kind=kind, seed=seed, sparsity=share, relative_error=share, **place)
        cell["dense_accuracy"] = dense
        cell["accuracy"] = dense - min(60.0, 8 * share**6 * base**behind) - dice.uniform(0, 0.05)
        cell["intrinsic_dimension"] = 5.0 + 3 * behind + dice.uniform(0, 1)
        cells.append(cell | {"intrinsic_dimension_maps": 12.0 + depth % 3})
    return cells


def k_cells(dice: random.Random, slope: float = 0.03, networks: int = 10) -> Cells:
    cells = []
    for k, number, share in itertools.product(range(50, 351, 50), range(networks), SHARES):
        dense = 70 + k / 50
        cell = everywhere("conv-cifar", kind="fig3c", k=k, network=number, layer="conv1", sparsity=share)
        lost = share**4 * (5 + slope * k + dice.uniform(-1, 1))
        cells.append(cell | {"dense_accuracy": dense, "accuracy": dense - lost})
    return cells


def recipes(dice: random.Random) -> Cells:
    """Two efforts and a rival, with few samples and with all; the default loses least and takes longest."""
    cells = []
    known = {"fast": (4.0, 0.5), "default": (1.0, 18.0), "rival": (2.0, 5.0)}
    for (recipe, (lost, seconds)), net, rows, share in itertools.product(
        known.items(), ("dense-mnist", "dense-cifar"), (200, 1000, "all"), (0.95, 0.98)
    ):
        cell = everywhere(net, kind="recipes", recipe=recipe, rows=rows, seed=0, sparsity=share)
        lost *= (2 if share == 0.98 else 1) * (3 if rows == 200 else 1)
        cell |= {"dense_accuracy": NETS[net], "accuracy": NETS[net] - lost - dice.uniform(0, 0.01)}
        cells.append(cell | {"seconds": seconds, "relative_error": {"fc1": None, "fc2": 0.2}})
    return cells


def write(folder: Path, records: Cells) -> Path:
    """Write records with their keys; what has no kind is of the experiment that the folder is named after."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for record in records:
        key = {name: record[name] for name in KEY if name in record}
        lines.append(json.dumps({"kind": folder.name.partition("-")[0], "key": key, **record}) + "\n")
    (folder / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder / "records.jsonl"


def results(folder: Path) -> Path:
    """A whole results folder."""
    dice = random.Random(0)
    made = {"table1": table1(dice), "fig2": fig2(dice), "fig3a": layer_cells("conv-mnist", 4, dice)}
    made |= {"fig3b": layer_cells("conv-cifar", 8, dice), "fig3c": k_cells(dice)}
    made["recipes"] = recipes(dice)
    for name, records in made.items():
        write(folder / name, records)
    return folder
