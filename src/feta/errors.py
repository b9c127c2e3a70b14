"""Every error feta raises on purpose; catching FetaError catches them all.

A message reads *where must what, got value*, and names the cure where there is one.
"""

import difflib
from collections.abc import Iterable

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


class FileError(FetaError, OSError):
    """A file of ours cannot be read or written."""


class ModelError(FetaError):
    """A model cannot be handled: its layers, weights or structure are in the way."""


def check_range(owner: str, rule: str, **values: float | None) -> None:
    """Refuse values that are out of range; None stands for "not set" and passes.

    owner: the class or function whose fields or arguments they are.
    rule: ">= 1" or "> 0", a unit may follow: "> 0 GiB".

    Example: check_range("Alps", "> 0", rho=-1.0) raises "Alps.rho must be > 0, got -1.0".
    """
    sign, least, *_ = rule.split()
    for name, value in values.items():
        # NaN is neither above nor at the limit.
        if value is not None and not (value >= float(least) if sign == ">=" else value > float(least)):
            raise ConfigError(f"{owner}.{name} must be {rule}, got {value}")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a table, with the nearest one that is."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return ConfigError(f"unknown {kind} '{printable(name[:80])}'{hint} Known: {', '.join(choices)}")


def printable(text: str, *, lines: bool = False) -> str:
    """Text with every letter that cannot be printed as its escape: what is shown cannot steer a terminal.

    lines: whether it may be of several lines.
    """
    kept = "\n" if lines else ""
    return "".join(letter if letter.isprintable() or letter in kept else repr(letter)[1:-1] for letter in text)


def one_line(error: BaseException) -> str:
    """An error of somebody else's code as one line that fits into one of ours."""
    text = printable(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + ' …'}"


def listed(names: list[str]) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{printable(name)}'" for name in names[:5]) + more
