"""Options that several commands take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token


def _whole(kind: object, tokens: Sequence[Token]) -> int:
    """An integer as written. The library would round, and 1.5 epochs would become 2 without a word."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be a whole number, got {tokens[0].value}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
Flag = Annotated[bool, Parameter(negative="")]
DataDir = Annotated[Path | None, Parameter(help="Folder of the data sets; it goes before FETA_DATA and the cache.")]
DataName = Annotated[str | None, Parameter(help="A data set to use instead of the one the network names.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, …; by default a GPU if there is one.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object instead of a table.")]
Output = Annotated[
    Path | None, Parameter(name=("--output", "-o"), help="File to write; by default nothing is saved.")
]
Force = Annotated[bool, Parameter(negative="", help="Replace files that are there already.")]
Records = Annotated[Path | None, Parameter(help="JSONL file that gets the run's record; by default there is none.")]
