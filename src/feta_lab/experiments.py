"""The harness of all experiments: cells in, one record per cell out, as soon as each is done.

    cell     a dict that says what to do; the values under `key_fields` name it
    record   the cell, what `prepare` and `run_one` found, `timed` and `environment`

Records are only ever added: commands may share a file, and of a cell that was run again the last record counts.
A killed run goes on where it stopped. A cell that cannot be done is a record too, with `accuracy` None, the
`reason` and the kind of `failure`:

    refused   the method or the data said no; final
    budget    stopped after `cell_budget` seconds; run again under a larger budget
    error     something unforeseen was raised, or a file could not be read or written; run again on the next run
    died      its process ended, out of memory for example; run again on the next run
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from feta.errors import ConfigError
from feta_lab.records import append, environment, read
from feta_lab.workers import Cell, Outcome, Prepare, RunOne, attempt, nothing, run_in_workers

Record = dict[str, Any]
Key = tuple[Any, ...]
R = TypeVar("R", bound=Mapping[str, Any])


def run_cells(
    keys: Sequence[Cell],
    run_one: RunOne,
    records: Path,
    *,
    key_fields: Sequence[str],
    resume: bool = True,
    jobs: int = 1,
    cell_budget: float | None = None,
    prepare: Prepare = nothing,
    label: Callable[[Cell], str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """The record of every cell, in their order; those in the file already are not run again.

    run_one: the fields a cell's record adds. With jobs or a budget it runs in spawned processes: a function of
        a module, or a functools.partial of one.
    prepare: fields that every record of the cell has, failed or not; loading and warming up belong here,
        outside of the budget. An error in it ends the run: no other cell would fare better.
    jobs: how many cells at once; their times are then not to be compared, and `timed` says so.
    cell_budget: seconds after which a cell is stopped.
    label: what `tell` calls a cell; by default the values that name it.
    """
    if jobs < 1:
        raise ConfigError(f"jobs must be >= 1, got {jobs}")
    if cell_budget is not None and not cell_budget > 0:
        raise ConfigError(f"cell_budget must be > 0 seconds, got {cell_budget}")
    wanted = {key_of(cell, key_fields): cell for cell in keys}
    if len(wanted) < len(keys):
        raise ConfigError(
            f"cells must differ in {', '.join(key_fields)}, got {len(keys) - len(wanted)} twice"
        )
    found = latest(read(records), key_fields) if resume and records.exists() else []
    keyed = {key_of(line, key_fields): line for line in found if not _worth_another(line, cell_budget)}
    done = {key: line for key, line in keyed.items() if key in wanted}
    missing = [key for key in wanted if key not in done]
    cells = [wanted[key] for key in missing]
    names = [label(wanted[key]) if label else ", ".join(map(str, key)) for key in missing]

    def begins(index: int) -> None:
        tell(f"{len(wanted) - len(missing) + index + 1}/{len(wanted)} {names[index]}")

    for index, outcome in _outcomes(cells, run_one, prepare, jobs, cell_budget, begins):
        key = missing[index]
        record = _record(cells[index], outcome, cell_budget, timed=jobs == 1)
        append(records, record)
        done[key] = record
        if outcome.failure:
            tell(f"{names[index]}: {outcome.reason}")
    return [done[key] for key in wanted]


def key_of(cell: Mapping[str, Any], key_fields: Sequence[str]) -> Key:
    """What names a cell; a record of other experiments or of older versions has None where a field is missing."""
    values = (cell.get(name) for name in key_fields)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def latest(records: Iterable[R], key_fields: Sequence[str]) -> list[R]:
    """One record per cell, the last one written, in the order of first appearance."""
    return list({key_of(record, key_fields): record for record in records}.values())


def _outcomes(
    cells: Sequence[Cell],
    run_one: RunOne,
    prepare: Prepare,
    jobs: int,
    budget: float | None,
    begins: Callable[[int], None],
) -> Iterator[tuple[int, Outcome]]:
    if jobs > 1 or budget is not None:
        yield from run_in_workers(cells, run_one, prepare, jobs=jobs, budget=budget, begins=begins)
        return
    for index, cell in enumerate(cells):
        begins(index)
        common = dict(prepare(cell))
        outcome = attempt(run_one, cell)
        yield index, Outcome({**common, **outcome.fields}, outcome.failure, outcome.reason)


def _record(cell: Cell, outcome: Outcome, budget: float | None, *, timed: bool) -> Record:
    record = {**cell, **outcome.fields}
    if outcome.failure:
        record |= {"accuracy": None, "failure": outcome.failure, "reason": outcome.reason}
    if outcome.failure == "budget":
        record["cell_budget"] = budget
    threads = {} if timed else {"threads": "1"}
    return record | {"timed": timed, "environment": {**environment(), **threads}}


def _worth_another(record: Mapping[str, Any], budget: float | None) -> bool:
    """Whether a cell that failed may do better now."""
    if record.get("failure") == "budget":
        return budget is None or budget > record["cell_budget"]
    return record.get("failure") in ("error", "died")
