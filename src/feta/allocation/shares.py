"""Whole numbers that add up: a total shared out in proportion, between 1 and the size of each layer."""

from collections.abc import Mapping
from math import floor


def proportional(weights: Mapping[str, float], sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` in proportion to the weights; a layer that would get more than it has is full, the rest go on.

    Rounded down, and what is left goes where the next whole number is nearest in proportion (Jefferson's
    rule): unlike largest remainders, a larger total takes from nobody.
    """
    least = 1 if total >= len(sizes) else 0

    def at(scale: float) -> dict[str, int]:
        return {name: min(sizes[name], max(least, floor(scale * weights[name]))) for name in weights}

    low, high = 0.0, 1.0 + max(sizes[name] / weights[name] for name in weights)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if sum(at(middle).values()) <= total else (low, middle)
    kept = at(low)
    for _ in range(total - sum(kept.values())):
        open_ = [name for name in kept if kept[name] < sizes[name]]
        kept[min(open_, key=lambda name: (kept[name] + 1) / weights[name])] += 1
    return kept


def floors_of(sizes: Mapping[str, int], total: int, part: int = 4) -> dict[str, int]:
    """What every layer keeps whatever is measured: one part in four of its uniform share, one weight at least."""
    if total // part < len(sizes):
        return dict.fromkeys(sizes, 1 if total >= len(sizes) else 0)
    return proportional({name: float(size) for name, size in sizes.items()}, sizes, total // part)


def keep_one(kept: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """The same total with one weight at least in every layer, taken from the fullest; where there are enough."""
    result = dict(kept)
    if sum(result.values()) < len(sizes):
        return result
    for name in result:
        if result[name] == 0:
            result[max(result, key=lambda other: result[other])] -= 1
            result[name] = 1
    return result
