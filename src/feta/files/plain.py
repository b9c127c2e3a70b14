"""What files say in JSON and TOML, read with limits: a file may come from anywhere.

A fault is a ValueError with a short fact, to which the caller adds the file's name.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feta.errors import printable

LONGEST = 2**26  # characters of a text
DEEPEST = 64  # objects and lists in one another
DIGITS = 19  # of a whole number: more do not fit into 64 bits


def text_of(path: Path) -> str:
    """What a text file holds. Raises OSError, or ValueError for one that is too long or no text."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may wait for ever
        raise ValueError("no file, but a folder, a pipe or a device")
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    _check_length(content)
    return content.decode()


def from_json(text: str | bytes, *, finite: bool = True) -> Any:
    """A JSON text as plain values. `finite`: whether Infinity and NaN, which JSON does not have, are refused."""
    _check_length(text)
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError(f"a text nested deeper than {DEEPEST}") from None
    check(value, finite=finite)
    return value


def object_from_json(text: str | bytes, *, finite: bool = True) -> dict[str, Any]:
    value = from_json(text, finite=finite)
    if not isinstance(value, dict):
        raise ValueError(f"{shortened(value)}, which is no object")
    return value


def from_toml(text: str) -> dict[str, Any]:
    """A TOML text as plain values. It holds names and paths: no letters that cannot be printed."""
    _check_length(text)
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"a text nested deeper than {DEEPEST}") from None
    check(value, readable=True)
    return value


def check(value: Any, *, finite: bool = True, readable: bool = False) -> None:
    """Raise ValueError where something is nested too deep, no number, too large, or no text that can be written.

    readable: whether texts must be such that they can be printed as they are.
    """
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"a text nested deeper than {DEEPEST}")
        below: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                below += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple):
                below += one
            elif isinstance(one, str) and readable and not one.isprintable():
                raise ValueError(f"the text {shortened(one)}")
            elif isinstance(one, str) and not one.isascii():
                one.encode()  # half a character cannot be printed or stored: UnicodeEncodeError is a ValueError
            elif isinstance(one, int) and abs(one) >= 10**DIGITS:
                raise ValueError(f"a number of more than {DIGITS} digits")
            elif finite and isinstance(one, float) and not math.isfinite(one):
                raise ValueError(f"the number {one}")
        level, depth = below, depth + 1


def shortened(value: object) -> str:
    """A value in a message: one line, short, and without what a terminal would obey."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**DIGITS else "a huge number"
    return text if len(text) <= 80 else text[:80] + " …"


def tamed(error: BaseException) -> str:
    """The words of an error that quotes a file: short, and without what a terminal would obey."""
    return printable(str(error)[:300])


def _check_length(text: str | bytes) -> None:
    if len(text) > LONGEST:
        raise ValueError(f"a text of more than {LONGEST:,} characters")


def _whole(digits: str) -> int:
    # Python itself refuses more than 4,300 digits, and takes long for a little fewer.
    if len(digits.lstrip("-")) > DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits, more than {DIGITS}")
    return int(digits)
