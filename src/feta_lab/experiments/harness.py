"""The harness of all experiments: cells in, one record per cell out, written as soon as each is done.

    cell     a dictionary that says what to run; it is the `key` of its record
    record   kind, key, the cell's fields, what `prepare` and `run_one` found, `timed` and `environment`

Records are only ever added, so several commands may share a file. When a cell has several records, the last one
counts. A killed run goes on where it stopped. A cell that cannot be done has a record too, with `accuracy` None,
the `reason` and the kind of `failure`:

    refused   the method or the data said no; final
    budget    stopped after `cell_budget` seconds; run again under a larger budget
    error     something unforeseen was raised, or a file could not be read or written; run again by the next run
    died      its process ended, out of memory for example; run again by the next run
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feta.errors import ConfigError
from feta_lab.experiments.workers import Cell, Outcome, Prepare, RunOne, attempt, nothing, run_in_workers
from feta_lab.records import append, environment, identity, latest, read


def run_cells(
    kind: str,
    cells: Sequence[Cell],
    run_one: RunOne,
    records: Path,
    *,
    resume: bool = True,
    jobs: int = 1,
    cell_budget: float | None = None,
    prepare: Prepare = nothing,
    tell: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Run the cells that are not in the file yet, and return the record of every cell, in their order.

    kind: the experiment; a record with this kind and the cell as its key is the cell's.
    run_one: returns the fields that a cell's record adds. With jobs or a budget it runs in spawned processes, so
        it must be a function of a module, a functools.partial of one, or a method of an object that can be pickled.
    resume: False runs all cells again.
    jobs: how many cells run at once. Their times do not compare, and `timed` in the record says so.
    cell_budget: seconds after which a cell is stopped.
    prepare: returns fields that every record of the cell has, failed or not. Loading and warming up belong here,
        outside of the budget. An error in it ends the run: no other cell would fare better.
    tell: gets a line when a cell begins, and one when it fails.

    Raises ConfigError if two cells are the same.
    """
    wanted = {identity(kind, cell): cell for cell in cells}
    if len(wanted) < len(cells):
        raise ConfigError(f"cells of {kind} must differ, got {len(cells) - len(wanted)} twice")
    found = latest(read(records)) if resume and records.exists() else {}
    done = {i: line for i, line in found.items() if i in wanted and not _worth_another(line, cell_budget)}
    missing = [i for i in wanted if i not in done]
    todo = [wanted[i] for i in missing]

    def begins(index: int) -> None:
        tell(f"{len(wanted) - len(missing) + index + 1}/{len(wanted)} {label(todo[index])}")

    def here() -> Iterator[tuple[int, Outcome]]:
        for index, cell in enumerate(todo):
            begins(index)
            common = dict(prepare(cell))
            outcome = attempt(run_one, cell)
            yield index, replace(outcome, fields={**common, **outcome.fields})

    elsewhere = run_in_workers(todo, run_one, prepare, jobs=jobs, budget=cell_budget, begins=begins)
    for index, outcome in elsewhere if jobs > 1 or cell_budget is not None else here():
        record = _record(kind, todo[index], outcome, cell_budget, timed=jobs == 1)
        append(records, record)
        done[missing[index]] = record
        if outcome.failure:
            tell(f"{label(todo[index])}: {outcome.reason}")
    return [done[i] for i in wanted]


def label(cell: Cell) -> str:
    """What progress calls a cell: dense-mnist, seed 0, feta, 0.9."""
    names = ("net", "k", "seed", "network", "layer", "method", "sparsity", "allocation", "round")
    words = {"k": "k = ", "seed": "seed ", "network": "network ", "round": "round "}
    said = [f"{words.get(name, '')}{cell[name]}" for name in names if name in cell]
    return ", ".join(said + [f"{name}d" for name in ("refine", "compensate") if cell.get(name)])


def _record(kind: str, cell: Cell, outcome: Outcome, budget: float | None, *, timed: bool) -> dict[str, Any]:
    record = {"kind": kind, "key": cell, **cell, **outcome.fields}
    if outcome.failure:
        record |= {"accuracy": None, "failure": outcome.failure, "reason": outcome.reason}
        record |= {"cell_budget": budget} if outcome.failure == "budget" else {}
    threads = {} if timed else {"threads": "1"}
    return record | {"timed": timed, "environment": environment() | threads}


def _worth_another(record: Mapping[str, Any], budget: float | None) -> bool:
    """Whether a cell that failed may do better now."""
    more = budget is None or budget > record.get("cell_budget", math.inf)
    return more if record.get("failure") == "budget" else record.get("failure") in ("error", "died")
