"""feta plan: what to do with a network in a given time."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from feta.cli.console import (
    out,
    print_json,
    print_table,
    progress_bar,
    records_path,
    resolve_device,
)
from feta.cli.options import DataDir, Device, Json, Records, Whole, data_of

if TYPE_CHECKING:
    from feta.lab.planning import Candidate, Task
    from feta.lab.probing import Plan

STAGES = {"prune": "prune", "refine": "prune and refine", "retrain": "prune and retrain"}


def plan(
    network: Path,
    /,
    *,
    budget: Annotated[str, Parameter(help="Time for everything, planning included: 30s, 5m, 1h.")],
    sparsity: float = 0.9,
    seed: Whole = 0,
    device: Device = None,
    data_dir: DataDir = None,
    records: Records = None,
    json: Json = False,
) -> None:
    """Try every method on a part of the data and say what to do with a network in the time you have.

    Parameters
    ----------
    network
        A file made by `feta train`.
    sparsity
        Share of zero weights in [0, 1).
    seed
        For the choice of rows and methods that draw at random.
    """
    from feta.export.atomic import check_writable
    from feta.lab import store
    from feta.lab.durations import parse_duration
    from feta.lab.probing import plan as find_plan
    from feta.lab.records import append, record
    from feta.sparsity import check_share

    seconds = parse_duration(budget, "--budget")
    check_share(sparsity, "--sparsity")
    where = resolve_device(device)
    net = store.load(network)
    record_file = records_path(records, None)
    check_writable(record_file)
    loaded = data_of(net, data_dir)
    with progress_bar() as bar:
        task = bar.add_task("planning", total=None, note="")
        found = find_plan(
            net,
            loaded,
            seconds,
            sparsity=sparsity,
            seed=seed,
            device=where,
            tell=lambda text: bar.update(task, note=text),
        )
    todo = commands(found, network, sparsity, seed, where if device is not None else None, data_dir)
    summary = _summary(found, sparsity, where) | {"commands": todo}
    config = {"network": network.name, "budget": seconds, "sparsity": sparsity}
    append(record_file, record("plan", config, seed, {k: v for k, v in summary.items() if k != "commands"}))
    if json:
        print_json(summary)
    else:
        _show(found, todo)


def commands(
    found: Plan, network: Path, sparsity: float, seed: int, device: str | None, data_dir: Path | None
) -> list[str]:
    """The advice as lines for a shell."""
    choice, task = found.advice.choice, found.task
    given = {"--seed": seed or None, "--device": device, "--data-dir": data_dir}
    common = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    pruned, last = (
        network.with_name(f"{network.stem}-{word}.safetensors") for word in ("pruned", "retrained")
    )
    line = ["feta", "prune", str(network), "--method", choice.method, "--sparsity", repr(sparsity)]
    if choice.stage == "refine":
        line += ["--refine"]
    lines = [[*line, *common, "-o", str(pruned)]]
    if choice.stage == "retrain":
        lines.append(["feta", "retrain", str(pruned), *_limits(choice, task), *common, "-o", str(last)])
    return [shlex.join(words) for words in lines]


def _limits(choice: Candidate, task: Task) -> list[str]:
    seconds = max(math.floor(10 * (choice.limit or 0)) / 10, 0.1)
    return ["--epochs", str(task.epochs), "--patience", repr(task.patience), "--seconds", repr(seconds)]


def _summary(found: Plan, sparsity: float, device: str) -> dict[str, Any]:
    advice = found.advice
    return {
        "budget": found.budget,
        "spent": found.spent,
        "sparsity": sparsity,
        "device": device,
        "dense": found.task.dense,
        "validation_images": found.task.images,
        "advice": advice.choice.to_dict() | {"chance": advice.chance, "sure": advice.word},
        "candidates": [candidate.to_dict() for candidate in advice.candidates],
        "skipped": found.skipped,
    }


def _show(found: Plan, todo: list[str]) -> None:
    from feta.lab.durations import duration

    advice = found.advice
    rows = [
        (
            c.method,
            STAGES[c.stage],
            f"{c.accuracy.value:.2f} ± {c.accuracy.spread:.2f}",
            f"{duration(c.seconds.value)} ± {duration(c.seconds.spread)}",
            "yes" if c.fits else "no",
        )
        for c in advice.candidates
    ]
    title = f"expected on the validation half; {found.task.dense:.2f} % before pruning"
    print_table(title, ("method", "what", "accuracy", "time", "fits"), rows)
    for what, reason in found.skipped.items():
        out().print(f"{what} is left out: {reason}")
    share = 100 * found.spent / found.budget
    out().print(f"planning took {duration(found.spent)}, {share:.0f} % of {duration(found.budget)}")
    choice = advice.choice
    expected = (
        f"{choice.accuracy.value:.2f} ± {choice.accuracy.spread:.2f} % in {duration(choice.seconds.value)}"
    )
    if not choice.fits:
        out().print(
            f"nothing fits into what is left; the quickest: {STAGES[choice.stage]} by {choice.method}"
        )
    else:
        out().print(f"{STAGES[choice.stage]} by {choice.method}: {expected}")
        out().print(
            f"{advice.word}: {100 * advice.chance:.0f} % that nothing tried is better by more than 0.2 points"
        )
    for line in todo:
        out().print(f"  {line}")
