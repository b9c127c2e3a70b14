"""Numbers and names in words, for tables, pages and progress."""

import html
from collections.abc import Sequence

from feta.errors import printable

LONGEST, NAME = 1000, 100  # letters of a sentence, and of a name in one


def in_words(text: str, most: int = LONGEST) -> str:
    """Somebody else's words: on one line, nothing that hides or turns the rest around, and an end."""
    return printable(text if len(text) <= most else text[:most] + "…")


def in_html(text: str) -> str:
    """The same, and no markup."""
    return html.escape(in_words(text))


def amount(number: float) -> str:
    """A number with three digits: 1.23 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g} "


def significant(number: float) -> str:
    """Three significant digits, zeros at the end included: 0.300, 0.00737."""
    return f"{number:#.3g}".rstrip(".")


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def at_least(percent: float) -> str:
    """Two decimals, never more than the value: a lower bound must not be rounded up."""
    return f"{int(percent * 100) / 100:.2f}"


def at_most(percent: float) -> str:
    """Two decimals, never less than the value."""
    return f"{-(-percent * 100 // 1) / 100:.2f}"


def some(names: Sequence[str], most: int = 3) -> str:
    """A few names: fc1, fc2 and 7 more."""
    rest = len(names) - most
    return ", ".join(in_words(name, NAME) for name in names[:most]) + (f" and {rest} more" if rest > 0 else "")


def smaller(before: float, after: float) -> str:
    """2.4× smaller, or no smaller where next to nothing is saved."""
    return f"{before / max(after, 1):.1f}× smaller" if before > 1.05 * after else "no smaller"


def counted(number: int, what: str) -> str:
    """1 layer, 2 layers."""
    return f"{number} {what}{'s' * (number != 1)}"


def agreed(samples: int, share: float) -> str:
    """A share of equal answers; of few samples by their number, which no percentage hides."""
    return percent(share, 1) if samples >= 40 else f"{round(share * samples)} of {samples}"


def duration(seconds: float) -> str:
    """0:07, 12:40 or 1:02:33."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
