"""feta bench: all methods against each other, on equal terms."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import err, out, print_json
from feta.cli.options import Json
from feta_lab.cli.reproduce import Settings

OUT = Path("results/bench")


def bench(
    *,
    settings: Settings | None = None,
    compensate: bool | None = None,
    allocation: str = "uniform",
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="Folder for records, figures and page.")] = OUT,
    json: Json = False,
) -> None:
    """Compare the methods: same networks, calibration rows, splits and threads; cells already recorded are kept.

    Parameters
    ----------
    compensate
        With a refit of the layer after the last pruned one, for every method alike, or without; by default both.
    allocation
        How the budget is shared over layers, for every method alike: see `feta prune --help`.
    """
    from feta_lab.experiments import run
    from feta_lab.experiments.bench import table
    from feta_lab.page.sections.bench import verdicts, write_bench

    chosen = (False, True) if compensate is None else (compensate,)
    given = asdict(settings or Settings()) | {"compensate": chosen, "allocation": allocation, "out": output}
    with err().status("starting") as status:
        done = run("bench", tell=status.update, **given)
    cells, page = done.records, write_bench(output, done.records)
    if json:
        shown = [{name: value for name, value in cell.items() if name != "environment"} for cell in cells]
        print_json({"environment": cells[0]["environment"], "cells": shown})
        return
    out().print(done.table)
    for claim, verdict in verdicts(table(cells)):
        out().print(f"{claim}: {verdict}")
    out().print(f"written: {page}")
