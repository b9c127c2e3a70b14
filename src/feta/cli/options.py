"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from feta.errors import ConfigError


def _whole(kind: object, tokens: Sequence[Token]) -> int:
    """An integer as written; the library would round, and 1.5 epochs would be 2 without a word."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be a whole number, got {tokens[0].value}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
DataDir = Annotated[Path | None, Parameter(help="Folder that holds the data sets; before FETA_DATA and the cache.")]
DataName = Annotated[str | None, Parameter(help="Data set, instead of the one the network names.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, …; by default a GPU if there is one.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of a table.")]
Output = Annotated[
    Path | None, Parameter(name=("--output", "-o"), help="File to write; without it nothing is saved.")
]
Records = Annotated[
    Path | None,
    Parameter(help="JSONL file the run's record is added to; by default feta-records.jsonl beside the output."),
]


def check_places(output: Path | None, network: Path, records: Path) -> None:
    """Fail before the work where its results cannot be written, or would overwrite the network.

    Raises ConfigError or FileError.
    """
    from feta.files.atomic import check_writable

    if output is not None and output.resolve() == network.resolve():
        raise ConfigError(f"--output must differ from the input, got {output} for both")
    for path in filter(None, (output, records)):
        check_writable(path)
