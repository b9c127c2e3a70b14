"""Which allocation is best: every one of them, under several methods and sparsities, on the same networks.

    python benchmarks/allocation.py NETWORKS --nets dense-mnist conv-cifar --seeds 3 --device cuda --jobs 4
    python benchmarks/allocation.py NETWORKS --table

NETWORKS is a folder of trained networks (feta_lab.zoo). A record per cell goes to results/allocation/records.jsonl
as soon as it is done; what is recorded is not run again. Compensation is on. Runs with torch, numpy, scipy and
safetensors alone (PYTHONPATH=src), so that a bare GPU machine can do it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from feta.allocation import ALLOCATIONS
from feta.engine.prune import prune
from feta_lab import data as datasets
from feta_lab.experiments import latest, run_cells
from feta_lab.judge import judge
from feta_lab.networks import PRESETS, preset
from feta_lab.records import read
from feta_lab.zoo import trained

KEY = ("net", "seed", "method", "sparsity", "allocation", "layers", "samples", "device")
Record = Mapping[str, Any]


@functools.lru_cache(maxsize=1)
def network_of(
    net: str, seed: int, folder: Path, device: str
) -> tuple[nn.Module, datasets.DataSet, Tensor, dict[str, float]]:
    """The network, its data, the calibration images on the device, and its accuracy; cells come net by net."""
    network = trained(net, seed, folder, device=device)
    data = datasets.load(network.info.data, None)
    images = network.info.normalisation.apply(data.train.images, device)
    model = network.model.to(device)
    return model, data, images, judge(model, data, device)


def dense(cell: dict[str, Any], *, folder: Path) -> dict[str, Any]:
    _, data, images, scores = network_of(cell["net"], cell["seed"], folder, cell["device"])
    return {
        "compensate": True,
        "dense_accuracy": scores["test"],
        "dense_validation": scores["validation"],
        "rows": cell["samples"] or len(images),
        "data": data.label,
        "data_name": data.name,
    }


def pruned(cell: dict[str, Any], *, folder: Path) -> dict[str, Any]:
    model, data, images, _ = network_of(cell["net"], cell["seed"], folder, cell["device"])
    result = prune(
        model,
        images,
        cell["sparsity"],
        cell["method"],
        allocation=cell["allocation"],
        layers=cell["layers"],
        compensate=True,
        n_samples=cell["samples"],
        seed=cell["seed"],
        device=cell["device"],
    )
    report, scores = result.report, judge(result.model, data, cell["device"])
    return {
        "accuracy": scores["test"],
        "validation": scores["validation"],
        "seconds": report.seconds,
        "allocation_seconds": report.allocation.seconds if report.allocation else 0.0,
        "kept": report.allocation.kept if report.allocation else {},
        "nonzeros": [layer.nonzeros for layer in report.layers],
        "relative_error": [layer.relative_error for layer in report.layers],
        "status": [layer.status for layer in report.layers],
    }


def table(records: Sequence[Record], score: str = "accuracy") -> str:
    """Markdown: a row per net, method and sparsity, and the mean over nets; the best of a row in bold."""
    names = [a for a in ALLOCATIONS if any(r["allocation"] == a for r in records)]
    lines = [
        f"| net | method | sparsity | seeds | dense | {' | '.join(names)} |",
        f"| --- | --- | --- | --- | --- |{' --- |' * len(names)}",
    ]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for r in records:
        groups.setdefault((r["net"], r["method"], r["sparsity"]), []).append(r)
        groups.setdefault(("mean", r["method"], r["sparsity"]), []).append(r)
    for key in sorted(groups, key=lambda key: (key[0] == "mean", key)):
        rows = _complete(groups[key], names)
        if not rows:
            continue
        means = [statistics.mean(r[score] for r in rows if r["allocation"] == a) for a in names]
        cells = [f"**{m:.2f}**" if m == max(means) else f"{m:.2f}" for m in means]
        base = statistics.mean(r[f"dense_{score}"] for r in rows)
        count = len({r["seed"] for r in rows})
        lines.append(f"| {key[0]} | {key[1]} | {key[2]:g} | {count} | {base:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _complete(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """Only the networks on which every allocation was run: the same for all."""
    ran: dict[tuple[str, int], set[str]] = {}
    for r in records:
        if r["accuracy"] is not None:
            ran.setdefault((r["net"], r["seed"]), set()).add(r["allocation"])
    whole = {network for network, done in ran.items() if done >= set(names)}
    return [r for r in records if r["accuracy"] is not None and (r["net"], r["seed"]) in whole]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", type=Path, help="folder of trained networks; missing ones are trained")
    parser.add_argument("--out", type=Path, default=Path("results/allocation"))
    parser.add_argument("--nets", nargs="+", default=list(PRESETS))
    parser.add_argument("--methods", nargs="+", default=["threshold", "alps", "feta"])
    parser.add_argument("--allocations", nargs="+", default=list(ALLOCATIONS), choices=ALLOCATIONS)
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.9, 0.95, 0.98])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", nargs="+", help="patterns, such as 'conv*' 'fc*'; default: hidden dense")
    parser.add_argument("--samples", type=int, help="calibration samples; default: the whole training set")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once; times then do not compare")
    parser.add_argument("--table", action="store_true", help="only print what is recorded")
    given = parser.parse_args()
    records = given.out / "records.jsonl"
    if not given.table:
        grid = product(given.nets, range(given.seeds), given.sparsity, given.methods, given.allocations)
        cells = [
            {
                "net": preset(net).name,
                "seed": seed,
                "method": method,
                "sparsity": sparsity,
                "allocation": allocation,
                "layers": given.layers,
                "samples": given.samples,
                "device": given.device,
            }
            for net, seed, sparsity, method, allocation in grid
        ]
        run_cells(
            cells,
            functools.partial(pruned, folder=given.networks),
            records,
            key_fields=KEY,
            jobs=given.jobs,
            prepare=functools.partial(dense, folder=given.networks),
            tell=lambda text: print(text, flush=True),
        )
    found = latest(read(records), KEY)
    mine = [r for r in found if (r["samples"], r["layers"]) == (given.samples, given.layers)]
    print(table(mine))
    print(f"\nvalidation half, for choosing\n\n{table(mine, 'validation')}")


if __name__ == "__main__":
    main()
