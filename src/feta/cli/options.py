"""Options that several commands take, and what they do with a network's file and its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, Token

from feta.cli.console import download_bar
from feta.errors import ConfigError

if TYPE_CHECKING:
    from feta_lab.data import DataSet
    from feta_lab.store import Network


def _whole(kind: object, tokens: Sequence[Token]) -> int:
    """An integer as written; the library would round, and 1.5 epochs would be 2 without a word."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be a whole number, got {tokens[0].value}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
DataDir = Annotated[
    Path | None, Parameter(help="Folder that holds the data sets; before FETA_DATA and the cache.")
]
DataName = Annotated[str | None, Parameter(help="Data set, instead of the one the network names.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, …; by default a GPU if there is one.")]
Json = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object instead of a table.")
]
Output = Annotated[
    Path | None, Parameter(name=("--output", "-o"), help="File to write; without it nothing is saved.")
]
Records = Annotated[
    Path | None,
    Parameter(
        help="JSONL file the run's record is added to; by default feta-records.jsonl beside the output."
    ),
]


def check_output(output: Path | None, network: Path) -> None:
    """A network is never overwritten by what is made of it."""
    if output is not None and output.resolve() == network.resolve():
        raise ConfigError(f"--output must differ from the input, got {output} for both")


def data_of(network: Network, data_dir: Path | None, name: str | None = None) -> DataSet:
    """The data a network names, or the set of that name, normalised as the network was trained."""
    from dataclasses import replace

    from feta_lab import data

    with download_bar() as advance:
        loaded = data.load(name or network.info.data, data_dir, progress=advance)
    return replace(loaded, normalisation=network.info.normalisation)
