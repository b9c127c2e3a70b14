"""Options that several commands take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from feta.errors import ConfigError, quoted, shown


def _whole(kind: object, tokens: Sequence[Token]) -> int:
    """An integer as written. The library would round, and 1.5 epochs would become 2 without a word."""
    try:
        value = int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be a whole number, got {shown(tokens[0].value)}") from None
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"must be a whole number below 2**63, got {shown(value)}")
    return value


def _seed(kind: object, tokens: Sequence[Token]) -> int:
    """A seed that torch can take."""
    value = _whole(kind, tokens)
    if value < 0:
        raise ValueError(f"must be a whole number >= 0, got {value}")
    return value


Seed = Annotated[int, Parameter(converter=_seed)]
Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
DataDir = Annotated[Path | None, Parameter(help="Folder of the data sets; it goes before FETA_DATA and the cache.")]
DataName = Annotated[str | None, Parameter(help="A data set to use instead of the one the network names.")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, …; by default a GPU if there is one.")]
Json = Annotated[Flag, Parameter(name="--json", help="Print one JSON object instead of a table.")]
Place = Annotated[Path | None, Parameter(name=("--output", "-o"))]  # where the command has more to say about it
Output = Annotated[Place, Parameter(help="File to write; by default nothing is saved.")]
Force = Annotated[Flag, Parameter(help="Replace files that are there already; folders never.")]
Report = Annotated[
    Path | None, Parameter(help="HTML file to write: what was lost and saved, layer by layer, and what to try next.")
]
Records = Annotated[Path | None, Parameter(help="JSONL file that gets the run's record; by default there is none.")]


def whole_numbers(text: str, where: str, such: str = "3,32,32") -> list[int]:
    """Numbers >= 1 out of 3,32,32 or 3x32x32."""
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise ConfigError(f"{where} must be whole numbers >= 1 such as {such}, got {quoted(text)}")
    return [int(part) for part in parts]
