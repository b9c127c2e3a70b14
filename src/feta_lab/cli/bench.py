"""feta bench: all methods against each other, on equal terms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from feta.cli.console import err, out, print_json, print_table, resolve_device
from feta.cli.options import DataDir, Device, Json, MaybeWhole, Whole
from feta.errors import ConfigError


def bench(
    *,
    nets: str | None = None,
    methods: str | None = None,
    sparsity: str = "0.8,0.9,0.95,0.98",
    seeds: Whole = 3,
    compensate: Literal["on", "off", "both"] = "both",
    allocation: str = "uniform",
    samples: MaybeWhole = None,
    data: str | None = None,
    device: Device = None,
    data_dir: DataDir = None,
    output: Annotated[
        Path, Parameter(name=("--output", "-o"), help="Folder for records, figures and page.")
    ] = Path("results/bench"),
    networks: Annotated[Path, Parameter(help="Folder of trained networks; missing ones are trained.")] = Path(
        "results/networks"
    ),
    json: Json = False,
) -> None:
    """Compare the methods: same networks, calibration rows, splits and threads; cells already recorded are kept.

    Parameters
    ----------
    nets
        Presets, separated by commas; by default the dense ones of the paper.
    methods
        Names, separated by commas; by default all. With options: feta:quality=best, feta:solver=svrg+debias=false.
    sparsity
        Shares of zeros, separated by commas.
    seeds
        Networks per preset.
    compensate
        With or without a refit of the layer after the last pruned one, for every method alike.
    allocation
        How the budget is shared over layers, for every method alike: see `feta prune --help`.
    samples
        Calibration samples; by default the whole training set.
    data
        A data set instead of the presets' own (mnist-mini needs no download).
    """
    from feta.sparsity import check_share
    from feta_lab.bench import Bench, run_bench, table
    from feta_lab.page.sections.bench import verdicts, write_bench

    try:
        shares = tuple(check_share(float(part), "--sparsity") for part in sparsity.split(","))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--sparsity must be numbers in [0, 1) separated by commas, got '{sparsity}'"
        ) from None
    defaults = Bench()
    plan = Bench(
        nets=tuple(nets.split(",")) if nets else defaults.nets,
        methods=tuple(methods.split(",")) if methods else defaults.methods,
        sparsities=shares,
        seeds=seeds,
        compensate={"on": (True,), "off": (False,), "both": (False, True)}[compensate],
        allocation=allocation,
        samples=samples,
        data=data,
        device=resolve_device(device),
        data_dir=data_dir,
        networks=networks,
    )
    with err().status("starting") as status:
        cells = run_bench(plan, output / "records.jsonl", status.update)
    page = write_bench(output, cells)
    rows = table(cells)
    if json:
        print_json(
            {
                "environment": cells[0]["environment"],
                "cells": [{k: v for k, v in c.items() if k != "environment"} for c in cells],
            }
        )
        return
    columns = ("net", "sparsity", "method", "test accuracy", "relative error", "seconds", "floor")
    for on in plan.compensate:
        title = "with compensation" if on else "without compensation"
        print_table(title, columns, [_line(row) for row in rows if row["compensate"] == on])
    for claim, verdict in verdicts(rows):
        out().print(f"{claim}: {verdict}")
    out().print(f"written: {page}")


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    cell = (row["net"], f"{100 * row['sparsity']:g} %", row["method"])
    if not row["seeds"]:
        return (*cell, "–", "–", "–", "–")
    times = (f"{row['seconds']:.2f}", f"{row['floor']:.2f}")
    return (*cell, f"{row['accuracy']:.2f} %", f"{row['relative_error']:.4f}", *times)
