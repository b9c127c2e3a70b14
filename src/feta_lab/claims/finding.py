"""What a claim's test gives back, and how answers of single networks become one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from feta_lab.page import Cell, VerdictName

Answer = Literal["yes", "no", "mixed"]


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, what the records say of it, and why; `rows` are the numbers behind it."""

    key: str
    claim: str
    verdict: VerdictName
    answer: str
    why: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()


def overall(answers: Sequence[Answer]) -> VerdictName:
    """One verdict: all yes, all no, or it depends."""
    if not answers:
        return "not measured"
    if len(set(answers)) > 1 or "mixed" in answers:
        return "depends"
    return "holds" if answers[0] == "yes" else "does not hold"


def unmeasured(key: str, claim: str, missing: str) -> Finding:
    """No verdict, and what it would take."""
    return Finding(key, claim, "not measured", f"Needs {missing}.")


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def networks(count: int) -> str:
    return f"{count} network{'' if count == 1 else 's'}"


def between(values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    """The range of some numbers in words; signs are written out."""
    low, high = (f"{value:+.{digits}f}".replace("-", "−") for value in (min(values), max(values)))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"
