"""Numbers as text: single values, and columns of a table."""

import math
from collections.abc import Sequence

from feta_lab.results.forms import is_number

MISSING = "–"


def show(value: str | float | None) -> str:
    """Write one value with about four digits: show(1234567) is "1,234,567", show(None) is a dash."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or not is_number(value):
        return MISSING
    if isinstance(value, int) or 1e3 <= abs(value) < 1e15:
        return minus(f"{value:,.0f}")
    return minus(f"{value:.4g}")


def show_column(values: Sequence[float]) -> list[str]:
    """Write the numbers of one column, with the same decimals where they are of similar size."""
    sizes = [abs(value) for value in values if value]
    alike = sizes and max(sizes) <= 1000 * min(sizes) and 1e-3 <= max(sizes) < 1e4
    if not alike or all(isinstance(value, int) for value in values):
        return [show(value) for value in values]
    room = max(0, 3 - math.floor(math.log10(max(sizes))))
    decimals = max(_decimals(round(value, room), room) for value in values)
    return [minus(f"{value:,.{decimals}f}") for value in values]


def minus(text: str) -> str:
    """Replace hyphens by true minus signs."""
    return text.replace("-", "−")


def _decimals(value: float, most: int) -> int:
    """The fewest decimals that write the value exactly, up to rounding errors."""
    return next((d for d in range(most) if math.isclose(round(value, d), value, rel_tol=1e-6)), most)
