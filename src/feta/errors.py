"""Every error feta raises on purpose; catching FetaError catches them all.

A message reads *where must what, got value*, and names the cure where there is one.
"""

import difflib
import math
import reprlib
import sys
import warnings
from collections.abc import Iterable
from numbers import Real
from typing import Any

SHORT = 80  # letters of a value in a message

LONGEST = 1000  # letters of a message's beginning, and of its end, which names the cure


class FetaError(Exception):
    """Base of all errors feta raises on purpose.

    A message may quote files and names of others: what cannot be printed is spelt out in it, and it has an end.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return printable(text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]} … {text[-LONGEST:]}", lines=True)


class ConfigError(FetaError, ValueError):
    """An argument or option is outside what it may be."""


class DataError(FetaError):
    """A data set is missing, corrupt, or not what it claims to be."""


class NotData(ConfigError, DataError):
    """What is given as data is none: an argument that cannot be, and data that cannot be used."""


class FileError(FetaError, OSError):
    """A file of ours cannot be read or written."""


class ModelError(FetaError):
    """A model cannot be handled: its layers, weights or structure are in the way."""


def warn(said: str, kind: type[Warning] = UserWarning) -> None:
    """A warning that points at the line, outside of feta, from which feta was called."""
    frame, level, inside = sys._getframe(1), 2, ("feta", "contextlib", "torch")  # the other two decorate
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    warnings.warn(said, kind, stacklevel=level)


def check_range(owner: str, rule: str, **values: float | None) -> None:
    """Refuse values that are out of range; None stands for "not set" and passes.

    owner: the class or function whose fields or arguments they are.
    rule: ">= 1" or "> 0", a unit may follow: "> 0 GiB"; "> 0 and finite", "finite", "in [0, 1)".

    Example: check_range("Alps", "> 0", rho=-1.0) raises "Alps.rho must be > 0, got -1.0".
    """
    for name, value in values.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and _keeps(rule, value)):
            where = f"{owner}.{name}" if owner else name
            raise ConfigError(f"{where} must be {rule}, got {shown(value)}")


def check_fields(settings: object, rule: str, *names: str) -> None:
    """`check_range` of some fields of an object."""
    check_range(type(settings).__name__, rule, **{name: getattr(settings, name) for name in names})


def _keeps(rule: str, value: float) -> bool:
    """Whether a number keeps a rule; NaN is neither above, at, nor below a limit."""
    sign, *words = rule.split(maxsplit=1)
    if sign == "in":
        low, high = map(float, words[0][1:-1].split(","))
        return (low < value or ("[" in rule and value == low)) and (value < high or ("]" in rule and value == high))
    if rule.endswith("finite") and not abs(value) < math.inf:
        return False
    least = float(words[0].split()[0]) if words else 0.0
    return {">=": value >= least, ">": value > least, "finite": True}[sign]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a table, with the nearest one that is."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return ConfigError(f"unknown {kind} {quoted(name)}{hint} Known: {', '.join(choices)}")


def quoted(text: str) -> str:
    """Somebody else's text in a message: in quotes, on one line, shortened, without codes that a terminal obeys."""
    plain = printable(text)
    return f"'{plain if len(plain) <= SHORT else plain[:SHORT] + '…'}'"


def printable(text: str, *, lines: bool = False) -> str:
    """Text with every letter that cannot be printed as its escape: what is shown cannot steer a terminal.

    lines: whether it may be of several lines.
    """
    kept = "\n" if lines else ""
    return "".join(letter if letter.isprintable() or letter in kept else repr(letter)[1:-1] for letter in text)


def shown(value: Any) -> str:
    """A value in a message: short, on one line, and of large things the kind alone."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict) and type(value) is not dict:  # whose own text may be anything
        name = type(value).__name__
        return f"{article(name)} {name} of {len(value)}"
    if isinstance(value, bool | None | type | Real | bytes | list | tuple | set | dict):
        try:
            text = printable(reprlib.repr(value))
        except ValueError:  # Python writes no whole numbers of more than 4,300 digits
            return "a number of thousands of digits"
        return text if len(text) <= SHORT else f"{text[:SHORT]}…"
    shape = f" of shape {tuple(value.shape)}" if isinstance(getattr(value, "shape", None), tuple) else ""
    name = type(value).__name__
    return f"{article(name)} {name}{shape}"


def article(name: str) -> str:
    return "an" if name[0] in "AEIOUaeio" else "a"


def one_line(error: BaseException) -> str:
    """An error of somebody else's code as one line that fits into one of ours."""
    text = printable(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + ' …'}"


def listed(names: list[str]) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{printable(name)}'" for name in names[:5]) + more
