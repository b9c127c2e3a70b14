"""feta reproduce: the paper's tables and figures, each from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import err, out, print_json
from feta.cli.options import DataDir, Device, Json, MaybeWhole
from feta.errors import FetaError

Flag = Parameter(negative="")


def reproduce(
    experiment: str,
    /,
    *,
    nets: str | None = None,
    methods: str | None = None,
    seeds: MaybeWhole = None,
    sparsity: str | None = None,
    samples: MaybeWhole = None,
    epochs: MaybeWhole = None,
    batch_size: MaybeWhole = None,
    learning_rate: float | None = None,
    components: str | None = None,
    device: Device = None,
    data: str | None = None,
    data_dir: DataDir = None,
    networks: Annotated[
        Path | None, Parameter(help="Folder of trained networks; missing ones are trained.")
    ] = None,
    keep: Annotated[
        Path | None, Parameter(help="Folder of pruned networks; table1 and fig2 then prune each one once.")
    ] = None,
    out_: Annotated[Path | None, Parameter(name=("--out", "-o"), help="Folder for the records.")] = None,
    resume: bool | None = None,
    jobs: MaybeWhole = None,
    cell_budget: float | None = None,
    config: Path | None = None,
    quick: Annotated[bool, Flag] = False,
    json: Json = False,
) -> None:
    """Run a table or a figure of the paper, with a record per cell; a killed run goes on where it stopped.

    Parameters
    ----------
    experiment
        table1, fig2, fig3a, fig3b or fig3c.
    nets
        Presets, separated by commas; by default the paper's.
    methods
        Names, separated by commas, with options as in `feta bench`; by default all.
    seeds
        Networks per preset.
    sparsity
        Shares of zeros, separated by commas.
    samples
        Calibration samples; by default the whole training set.
    epochs
        Of retraining, at the most; in Figure 3 of training by the short recipe.
    batch_size
        Of that training.
    learning_rate
        Of that training; in Figure 3c at its peak.
    components
        How many principal components images are projected on (fig3c), separated by commas.
    data
        A data set instead of the presets' own.
    resume
        Keep the cells that are recorded already. With --no-resume they are run again.
    jobs
        Processes for training networks and for what is not timed; timed cells run one at a time.
    cell_budget
        Seconds after which a cell is stopped and recorded as such.
    config
        TOML file with settings (see configs/); options override it.
    quick
        The same path on data that comes with feta, in a minute or two; not with --config.
    """
    from feta_lab.report import build
    from feta_lab.reproduce import reproduce as run

    done = run(
        experiment,
        config=config,
        quick=quick,
        tell=err().print,
        nets=nets,
        methods=methods,
        seeds=seeds,
        sparsity=sparsity,
        samples=samples,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        components=components,
        device=device,
        data=data,
        data_dir=data_dir,
        networks=networks,
        keep=keep,
        out=out_,
        resume=resume,
        jobs=jobs,
        cell_budget=cell_budget,
    )
    if json:
        print_json({"records": str(done.path), "cells": done.records})
        return
    out().print(f"{done.table}\nrecords: {done.path}")  # as text: the columns are too many for a frame
    try:
        made = build(done.path.parent)
        for one in made.passed_over:
            err().print(str(one))
        out().print(f"page: {made.page}")
    except FetaError as error:  # the records are there, whatever becomes of the page
        err().print(f"no page: {error}")
