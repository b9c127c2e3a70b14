"""feta reproduce: the paper's tables and figures, each from one command."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import err, out, print_json
from feta.cli.options import DataDir, Device, Json, MaybeWhole
from feta.errors import FetaError


@Parameter(name="*")
@dataclass
class Settings:
    """What `feta reproduce` and `feta bench` have in common."""

    nets: str | None = None
    """Presets, separated by commas; by default those of the experiment."""
    methods: str | None = None
    """Names, separated by commas; by default all. With options: feta:quality=best, feta-svrg:debias=false."""
    seeds: Annotated[MaybeWhole, Parameter(help="Networks per preset; by default 3.")] = None
    sparsity: Annotated[str | None, Parameter(help="Shares of zeros, separated by commas.")] = None
    samples: Annotated[MaybeWhole, Parameter(help="Calibration samples; by default the whole training set.")] = None
    device: Device = None
    data: str | None = None
    """A data set instead of the presets' own (mnist-mini needs no download)."""
    data_dir: DataDir = None
    networks: Path | None = None
    """Folder of trained networks, by default results/networks; missing ones are trained."""
    resume: bool | None = None
    """Keep the cells that are recorded already. With --no-resume they are run again."""
    jobs: MaybeWhole = None
    """Processes for training networks and for cells whose time does not matter."""
    cell_budget: float | None = None
    """Seconds after which a cell is stopped and recorded as such."""


@Parameter(name="*")
@dataclass
class PaperSettings(Settings):
    """What only some experiments have; the others refuse it."""

    epochs: MaybeWhole = None
    """Of retraining, at the most; in Figure 3 of training networks."""
    batch_size: Annotated[MaybeWhole, Parameter(help="Of that training.")] = None
    learning_rate: Annotated[float | None, Parameter(help="Of that training; in Figure 3c at its peak.")] = None
    components: str | None = None
    """How many principal components images are projected on (fig3c), separated by commas."""
    keep: Path | None = None
    """Folder of pruned networks; table1 and fig2 then prune each one once."""


def reproduce(
    experiment: str,
    /,
    *,
    settings: PaperSettings | None = None,
    out_: Annotated[Path | None, Parameter(name=("--output", "-o"), help="Folder for the records.")] = None,
    config: Path | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> None:
    """Run a table or a figure of the paper, with a record per cell; a killed run goes on where it stopped.

    Parameters
    ----------
    experiment
        table1, fig2, fig3a, fig3b, fig3c, bench, allocation or timing.
    config
        TOML file with settings (see configs/); options override it.
    quick
        The same path on data that comes with feta, in a minute or two; not with --config.
    """
    from feta_lab.experiments import run
    from feta_lab.page.report import build

    given = asdict(settings or PaperSettings())
    done = run(experiment, config=config, quick=quick, tell=err().print, out=out_, **given)
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
