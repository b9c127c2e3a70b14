"""How good is the planner's advice? Each against the records of Table 1 and Figure 2 of the same networks.

    python benchmarks/planner.py NETWORKS --nets dense-mnist dense-fashion dense-cifar --seeds 3 --budgets 10s 30s 2m
    python benchmarks/planner.py NETWORKS --table

NETWORKS is a folder of trained networks (feta.lab.zoo). Advices go to results/planner/records.jsonl as they are made;
what is recorded is not made again. Retraining that the budget would cut short is in no table: it is carried out.
Run it on the machine that made the records, with nothing beside, for seconds are compared.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from feta.lab import data as datasets
from feta.lab.durations import duration, parse_duration
from feta.lab.experiments import latest, run_cells
from feta.lab.hindsight import (
    Row,
    Verdict,
    always,
    by_validation,
    find,
    foretold,
    judge_advice,
    rows_of,
    spreads_off,
    summary,
    times_off,
)
from feta.lab.jobs import prune_network, retrain_network
from feta.lab.networks import preset
from feta.lab.planning import Stage
from feta.lab.probing import Plan, plan
from feta.lab.records import read
from feta.lab.store import Network
from feta.lab.zoo import trained

KEY = ("net", "seed", "sparsity", "budget", "device")
RIVALS: tuple[tuple[str, Stage], ...] = (
    ("threshold", "prune"),
    ("threshold", "refine"),
    ("threshold", "retrain"),
    ("feta", "prune"),
    ("feta", "refine"),
    ("alps", "refine"),
)
Record = Mapping[str, Any]


@functools.lru_cache(maxsize=1)
def subject(net: str, seed: int, folder: Path, device: str) -> tuple[Network, datasets.DataSet]:
    network = trained(net, seed, folder, device=device)
    data = datasets.load(network.info.data, None)
    return network, replace(data, normalisation=network.info.normalisation)


def prepare(cell: Record, *, folder: Path) -> dict[str, Any]:
    data = subject(cell["net"], cell["seed"], folder, cell["device"])[1]
    return {"data": data.label, "data_name": data.name}


def advice(cell: Record, *, folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    network, data = subject(cell["net"], cell["seed"], folder, cell["device"])
    options: dict[str, Any] = {"seed": cell["seed"], "device": cell["device"]}
    found = plan(network, data, cell["budget"], sparsity=cell["sparsity"], **options)
    choice = found.advice.choice
    row = find(rows, cell["net"], cell["seed"], choice.method, choice.stage)
    cut = choice.stage == "retrain" and row is not None and row.seconds + found.spent > cell["budget"]
    return {
        "method": choice.method,
        "stage": choice.stage,
        "accuracy": choice.accuracy.value,  # expected, validation
        "seconds": choice.seconds.value,
        "chance": found.advice.chance,
        "sure": found.advice.word,
        "spent": found.spent,
        "candidates": [candidate.to_dict() for candidate in found.advice.candidates],
        "skipped": found.skipped,
        "carried_out": carry_out(found, network, data, cell) if cut else None,
    }


def carry_out(found: Plan, network: Network, data: datasets.DataSet, cell: Record) -> dict[str, float]:
    """Prune and retrain as advised."""
    choice, task = found.advice.choice, found.task
    options: dict[str, Any] = {"seed": cell["seed"], "device": cell["device"]}
    pruned, told = prune_network(network, data, cell["sparsity"], choice.method, **options)
    _, after = retrain_network(
        pruned, data, max_epochs=task.epochs, patience=task.patience, seconds=choice.limit, **options
    )
    accuracy = after["accuracy"]["retrained"]
    spent = told["seconds"] + after["seconds"]
    return {"accuracy": accuracy["test"], "validation": accuracy["validation"], "seconds": spent}


def show(records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Every advice, then the planner beside the same advice every time."""
    pairs = [(record, judge_advice(record, rows)) for record in records]
    judged = [(record, verdict) for record, verdict in pairs if verdict is not None]
    lines = [
        "| net | seed | budget | advised | test | best in time | test | regret | sure |",
        "| --- " * 9 + "|",
    ]
    for record, v in judged:
        late = "" if v.in_time else " (late)"
        lines.append(
            f"| {v.net} | {v.seed} | {duration(v.budget)} | {v.advised.method}, {v.advised.stage}{late} | "
            f"{v.advised.accuracy:.2f} | {v.best.method}, {v.best.stage} | {v.best.accuracy:.2f} | "
            f"{v.regret:.2f} | {100 * record['chance']:.0f} % |"
        )
    if not judged:
        return "no advice has its rows in the records yet"
    asked = [record for record, _ in judged]
    lines += ["", "| advice | best or within 0.2 points | in time | mean regret |", "| --- " * 4 + "|"]
    lines.append(_line("the planner's", [verdict for _, verdict in judged]))
    lines += [_line(f"always {m}, {s}", always(m, s, rows, asked)) for m, s in RIVALS]
    lines.append(_line("every way run, best validation", by_validation(rows, asked)))
    weighed = list(foretold(asked, rows))
    off, times = spreads_off(weighed), times_off(weighed)
    shares = [100 * record["spent"] / record["budget"] for record in asked]
    lines += [
        "",
        f"{len(pairs) - len(judged)} advices without a row in the records",
        f"said: {100 * statistics.mean(record['chance'] for record in asked):.0f} % sure on average",
        f"planning took {statistics.mean(shares):.0f} % of the budget, {max(shares):.0f} % at the most",
    ]
    if off:
        held = 100 * statistics.mean(value <= 1 for value in off)
        factor = sorted(off)[int(0.68 * len(off))]
        lines.append(
            f"{held:.0f} % of {len(off)} expected accuracies within a spread of the measured one "
            f"(68 % are meant to be; spreads times {factor:.2f} would do)"
        )
    if times:
        near = 100 * statistics.mean(0.5 <= ratio <= 2 for ratio in times)
        middle = statistics.median(times)
        lines.append(
            f"expected over measured seconds: {middle:.2f} in the middle, {near:.0f} % within a factor of 2"
        )
    return "\n".join(lines)


def _line(name: str, verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return f"| {name} | – | – | – |"
    found = summary(verdicts)
    return (
        f"| {name} | {100 * found['good']:.0f} % | {100 * found['in_time']:.0f} % | {found['regret']:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", type=Path, help="folder of trained networks")
    parser.add_argument("--results", type=Path, default=Path("results"), help="holds table1/ and fig2/")
    parser.add_argument("--out", type=Path, default=Path("results/planner"))
    parser.add_argument("--nets", nargs="+", default=["dense-mnist", "dense-fashion", "dense-cifar"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budgets", nargs="+", default=["10s", "30s", "2m"])
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="only print what is recorded")
    given = parser.parse_args()
    files = (given.results / name / "records.jsonl" for name in ("table1", "fig2"))
    table1, fig2 = (read(path) if path.exists() else [] for path in files)
    rows = rows_of(table1, fig2, given.sparsity, given.device)
    records = given.out / "records.jsonl"
    if not given.table:
        cells = [
            {
                "net": preset(net).name,
                "seed": seed,
                "sparsity": given.sparsity,
                "budget": parse_duration(budget, "--budgets"),
                "device": given.device,
            }
            for net, seed, budget in product(given.nets, range(given.seeds), given.budgets)
        ]
        started = time.perf_counter()
        run_cells(
            cells,
            functools.partial(advice, folder=given.networks, rows=rows),
            records,
            key_fields=KEY,
            prepare=functools.partial(prepare, folder=given.networks),
            tell=lambda text: print(text, flush=True),
        )
        print(f"{duration(time.perf_counter() - started)}\n")
    found = latest(read(records), KEY)
    mine = [r for r in found if (r["sparsity"], r["device"]) == (given.sparsity, given.device)]
    print(show([record for record in mine if record.get("method")], rows))


if __name__ == "__main__":
    main()
