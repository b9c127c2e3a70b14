"""Numbers as text: tick labels of one style per axis, values in tooltips, table columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feta_lab.page.blocks import is_number

MISSING = "–"


def fixed(value: float, decimals: int | None = None) -> str:
    """A number without an exponent, with a true minus sign."""
    text = f"{value:g}" if decimals is None else f"{value:.{decimals}f}"
    return text.replace("-", "−")


def power_of_ten(value: float) -> str:
    """10⁵ or 2×10⁵."""
    exponent = math.floor(math.log10(value) + 1e-9)
    digit = round(value / 10.0**exponent)
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digit == 1 else f"{digit}×10{raised}"


def tick_labels(ticks: Sequence[float], step: float, percent: bool = False) -> list[str]:
    """Labels of evenly spaced ticks, all with the same unit and the same decimals."""
    if percent:
        return [f"{fixed(100 * tick, _decimals(100 * step))}%" for tick in ticks]
    scale, unit = _unit(max((abs(tick) for tick in ticks), default=0.0))
    decimals = _decimals(step / scale)
    return ["0" if abs(tick) < step / 2 else fixed(tick / scale, decimals) + unit for tick in ticks]


def show(value: str | float | int | None, percent: bool = False) -> str:
    """One value on its own, to about four digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or not is_number(value):
        return MISSING
    if percent:
        return fixed(100 * value, 2) + "%"
    if isinstance(value, int) or 1e3 <= abs(value) < 1e15:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def show_column(values: Sequence[float]) -> list[str]:
    """Numbers of one column, with the same decimals where they are of like size."""
    if all(isinstance(value, int) for value in values):
        return [show(value) for value in values]
    sizes = [abs(value) for value in values if value]
    if not sizes or max(sizes) > 1000 * min(sizes) or max(sizes) < 1e-3 or max(sizes) >= 1e4:
        return [show(value) for value in values]
    room = max(0, 3 - math.floor(math.log10(max(sizes))))
    decimals = max(_decimals(round(value, room), room) for value in values)
    return [f"{value:,.{decimals}f}".replace("-", "−") for value in values]


def _decimals(value: float, most: int = 12) -> int:
    """The fewest decimals that write the value exactly (up to rounding)."""
    return next((d for d in range(most) if math.isclose(round(value, d), value, rel_tol=1e-6)), most)


def _unit(largest: float) -> tuple[float, str]:
    """The factor and the suffix that keep labels short: 12,000 -> 12k, 0.00002 -> 2×10⁻⁵."""
    if 1e4 <= largest < 1e15:
        exponent = min(12, 3 * (math.floor(math.log10(largest)) // 3))
        return 10.0**exponent, {3: "k", 6: "M", 9: "G", 12: "T"}[exponent]
    if largest == 0 or 1e-3 <= largest < 1e15:
        return 1.0, ""
    power = 10.0 ** math.floor(math.log10(largest))
    return power, "×" + power_of_ten(power)
