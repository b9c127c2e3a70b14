"""Seconds in words, and back."""

from __future__ import annotations

import math
import re

from feta.errors import ConfigError

_PARTS = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(s|min|m|h)")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def duration(seconds: float) -> str:
    """2 ms, 0.5 s, 26 s, 3.2 min, 1.5 h: about two digits."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms" if seconds >= 1e-4 else "0 ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{_short(seconds / 60)} min"
    return f"{_short(seconds / 3600)} h"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def parse_duration(text: str, where: str = "duration") -> float:
    """Seconds of 30s, 5m, 1.5h or 1h30m."""
    compact = text.replace(" ", "")
    seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PARTS.findall(compact))
    if _PARTS.sub("", compact) or not 0 < seconds < math.inf:
        raise ConfigError(f"{where} must be a time > 0 such as 30s, 5m or 1h, got '{text}'")
    return seconds
