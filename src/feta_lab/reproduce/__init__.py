"""The paper's tables and figures, each from one command: plan, cells, records, table.

EXPERIMENTS names them; an experiment is added by a module with an EXPERIMENT of its own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feta.errors import ConfigError, unknown_name
from feta.files.atomic import check_writable
from feta_lab import data as datasets
from feta_lab.devices import resolve_device
from feta_lab.experiments import Record, run_cells
from feta_lab.reproduce import fig2, fig3_layers, fig3c, table1
from feta_lab.reproduce.experiment import Experiment, Table, Tell
from feta_lab.reproduce.plan import load_plan

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        table1.EXPERIMENT,
        fig2.EXPERIMENT,
        fig3_layers.FIG3A,
        fig3_layers.FIG3B,
        fig3c.EXPERIMENT,
    )
}


@dataclass(frozen=True)
class Reproduction:
    """What a run leaves: the records of its cells, where they are, and their table."""

    records: list[Record]
    path: Path
    table: Table


def reproduce(
    name: str,
    *,
    config: Path | None = None,
    quick: bool = False,
    tell: Tell = lambda text: None,
    **options: Any,
) -> Reproduction:
    """Run an experiment; `options` are fields of its plan, None where not given.

    quick: the same path on data that comes with feta, in a minute or two; not with a config.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if quick and config is not None:
        raise ConfigError(
            f"quick must go without a config, for both say what to run, got {config}; change a quick run by options"
        )
    experiment = EXPERIMENTS[name]
    given = {key: value for key, value in options.items() if value is not None}
    plan: Any = load_plan(experiment.plan, name, config, {**(experiment.quick if quick else {}), **given})
    path = plan.out / "records.jsonl"
    check_writable(path)
    if getattr(plan, "keep", None) is not None:
        check_writable(plan.keep / "network.safetensors")
    resolve_device(plan.where)
    for source in dict.fromkeys(plan.data_of(net) for net in plan.nets):
        if datasets.find(source, plan.data_dir) is None:
            tell(f"fetching {source}")
            datasets.load(source, plan.data_dir)  # now, not hours into the run
    experiment.train(plan, tell)
    records = run_cells(
        experiment.cells(plan),
        functools.partial(experiment.run_one, plan),
        path,
        key_fields=experiment.key_fields,
        resume=plan.resume,
        jobs=1 if experiment.timed else plan.jobs,
        cell_budget=plan.cell_budget,
        prepare=functools.partial(experiment.prepare, plan),
        label=experiment.label,
        tell=tell,
    )
    return Reproduction(records, path, experiment.table(records))
