"""Seconds in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """2 ms, 0.5 s, 26 s, 3.2 min, 1.5 h: about two digits."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms" if seconds >= 1e-4 else "0 ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    amount, unit = (seconds / 60, "min") if seconds < 5970 else (seconds / 3600, "h")
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
