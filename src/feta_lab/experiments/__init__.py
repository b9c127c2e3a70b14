"""The experiments: the paper's tables and figures, the benchmarks, and how they are run.

    done = run("table1", quick=True)
    print(done.table)

An experiment is a module with a plan (see `plan.Plan`), and a line in EXPERIMENTS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feta.errors import ConfigError, unknown_name
from feta_lab import data as datasets
from feta_lab.experiments.bench import Allocation, Bench, Timing
from feta_lab.experiments.fig2 import Fig2
from feta_lab.experiments.fig3_layers import Fig3a, Fig3b
from feta_lab.experiments.fig3c import Fig3c
from feta_lab.experiments.harness import run_cells
from feta_lab.experiments.plan import Plan, load_plan
from feta_lab.experiments.table1 import Table1
from feta_lab.records import Record, groups, summary

EXPERIMENTS: dict[str, type[Plan]] = {
    plan.name: plan for plan in (Table1, Fig2, Fig3a, Fig3b, Fig3c, Bench, Allocation, Timing)
}


@dataclass(frozen=True)
class Done:
    """What a run leaves: the records of its cells, the file they are in, and their table."""

    records: list[dict[str, Any]]
    path: Path
    table: str


def run(
    name: str,
    *,
    config: Path | None = None,
    quick: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Done:
    """Run an experiment; cells that are recorded already are not run again.

    name: one of EXPERIMENTS.
    config: TOML file with settings; options override it.
    quick: run the same path on data that comes with feta, in a minute or two; not together with a config.
    tell: gets lines on the progress.
    options: fields of the experiment's plan; None leaves a field as it is.

    Raises ConfigError if the experiment or a setting is unknown or out of range, before anything is run, and
    FileError if records or networks cannot be read or written.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if quick and config is not None:
        cure = "change a quick run by options"
        raise ConfigError(f"quick must go without a config, for both say what to run, got {config}; {cure}")
    plan = load_plan(EXPERIMENTS[name], config, options, quick)
    plan.check()
    for source in dict.fromkeys(map(plan.data_of, plan.nets)):
        if datasets.find(source, plan.data_dir) is None:
            tell(f"fetching {source}")
            datasets.load(source, plan.data_dir)  # now, not hours into the run
    plan.train(tell)
    how: dict[str, Any] = {"resume": plan.resume, "cell_budget": plan.cell_budget, "prepare": plan.prepare}
    jobs = 1 if plan.timed else plan.jobs
    records = run_cells(name, plan.cells(), plan.run, plan.records, jobs=jobs, tell=tell, **how)
    return Done(records, plan.records, table(records, plan.lines, plan.columns, plan.across))


def table(records: Sequence[Record], rows: Sequence[str], columns: Sequence[str], across: str = "") -> str:
    """A text table: a line per value of `rows`, a column per name of `columns`.

    With `across`, accuracies follow in a column per value of that field. A line whose cells all failed says how.
    """
    values = list(dict.fromkeys(record[across] for record in records)) if across else []
    lines = [[*rows, *columns, *map(str, values)]]
    for key, members in groups(records, *rows).items():
        ran = [record for record in members if record["accuracy"] is not None]
        found = [summary(ran or members, name) for name in columns]
        found += [summary([record for record in ran if record[across] == value], "accuracy") for value in values]
        cells = ["–" if one is None else f"{one:.4f}" if abs(one) < 1 else f"{one:.2f}" for one in found]
        lines.append([*map(str, key), *cells] if ran else [*map(str, key), *cells[:-1], members[0]["failure"]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
