"""Numbers with their spread, as cells of a table."""

from __future__ import annotations

from feta_lab.durations import duration
from feta_lab.page import Shown
from feta_lab.summaries import Spread


def points(value: Spread | None, digits: int = 2) -> Shown | None:
    """94.41 (93.82–94.90); one seed has no spread to show."""
    if value is None:
        return None
    mean, low, high = (f"{one:.{digits}f}".replace("-", "−") for one in (value.mean, value.low, value.high))
    return Shown(mean if value.n == 1 else f"{mean} ({low}–{high})", value.mean)


def time(value: Spread | None) -> Shown | None:
    """26 s (24 s–29 s)."""
    if value is None:
        return None
    text = duration(value.mean)
    ends = f" ({duration(value.low)}–{duration(value.high)})" if value.n > 1 else ""
    return Shown(text + ends, value.mean)


def mean_points(value: Spread | None, digits: int = 1) -> Shown | None:
    """The mean alone, for a table that shows the spread elsewhere."""
    return None if value is None else Shown(f"{value.mean:.{digits}f}".replace("-", "−"), value.mean)
