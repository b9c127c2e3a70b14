"""What a rule returns, and how the answers of single networks become one verdict."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Answer = Literal["yes", "no", "mixed"]
VerdictName = Literal["holds", "does not hold", "depends", "not measured"]
Cell = str | float | int | None

LEVEL = 0.05  # a claim never holds where luck alone would do as well more often than this


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, its verdict, the numbers in a sentence, the reason, and the table behind them."""

    key: str
    claim: str
    verdict: VerdictName
    answer: str
    why: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()


def overall(answers: Sequence[Answer], luck: float = 0.0) -> VerdictName:
    """One verdict: all yes, all no, or it depends.

    `luck` is the probability that chance alone gives answers as good as these. Above LEVEL a claim that would
    hold only "depends": it takes more networks to tell.
    """
    if set(answers) == {"yes"}:
        return "holds" if luck <= LEVEL else "depends"
    return "not measured" if not answers else "does not hold" if set(answers) == {"no"} else "depends"


def by_lot(wins: int, odds: Sequence[float]) -> float:
    """The probability of at least so many wins when game i is won with probability odds[i]."""
    counts = [1.0]  # counts[w]: the probability of w wins so far
    for p in odds:
        counts = [a * (1 - p) + b * p for a, b in zip([*counts, 0.0], [0.0, *counts], strict=True)]
    return sum(counts[wins:])


def needs(key: str, claim: str, missing: str) -> Finding:
    """No verdict, and what is needed for one."""
    return Finding(key, claim, "not measured", f"Needs {missing}.")


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def networks(count: int) -> str:
    """1 network, 2 networks."""
    return f"{count} network{'' if count == 1 else 's'}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign written out."""
    return f"{value:+.{digits}f}".replace("-", "−")


def between(values: Collection[float], digits: int = 1) -> str:
    """The range of some numbers."""
    ends = signed(min(values), digits), signed(max(values), digits)
    return " to ".join(dict.fromkeys(ends))


def sentence(parts: Sequence[str]) -> str:
    """Parts joined by semicolons, with a capital letter and a full stop."""
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
