"""The best split of a budget over layers, given what each layer's error is at each number of weights.

    minimise  sum over layers of E_l(k_l)    subject to    sum of k_l = total,    f_l <= k_l <= n_l

E_l is known at a few counts. A layer with more weights can do no worse, so a rise is measuring noise and is
levelled. Between two counts the error is taken to follow a power of k, and of the points so found only the
lower convex hull counts: then the Lagrangian answer, weights handed out one after the other to where the next
one helps most, is the exact minimum over whole numbers, and a larger budget takes weights from no layer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from feta.errors import ConfigError, DataError

STEPS = 16  # points put between two measured ones
LEAST_SHARE = 0.02  # of what a layer says: what is measured of less is noise

_Point = tuple[int, float]


@dataclass(frozen=True)
class Curve:
    """A layer's error at some numbers of non-zeros, from 0 up to all its weights."""

    counts: tuple[int, ...]
    errors: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.counts))
        if len(self.counts) < 2 or self.counts[0] != 0 or not rising:
            raise ConfigError(f"Curve.counts must rise from 0 to the layer's size, got {self.counts}")
        if len(self.errors) != len(self.counts):
            raise ConfigError(f"Curve.errors must be as many as counts ({len(self.counts)}), got {len(self.errors)}")
        if not all(math.isfinite(error) and error >= 0 for error in self.errors):
            raise DataError(f"a layer's errors must be finite and >= 0, got {self.errors}")

    @property
    def size(self) -> int:
        return self.counts[-1]

    def compounded(self) -> "Curve":
        """-E(0) log(1 - E(k) / E(0)): what is added up over layers instead of E itself.

        Plain sums hold for small errors only. A layer that keeps the share s = 1 - E(k) / E(0) of what it says
        leaves no more to those after it, and shares multiply, so -log s adds up. An empty layer, which
        a sum of errors may find cheap, is then out of the question.
        """
        empty = self.errors[0]
        if empty <= 0:
            return self
        kept = (max(1 - error / empty, LEAST_SHARE) for error in self.errors)
        return Curve(self.counts, tuple(-empty * math.log(share) for share in kept))

    def hull(self) -> list[_Point]:
        """The lower convex hull of the curve between 0 and its end, corners alone."""
        return _convex(_between(list(zip(self.counts, accumulate(self.errors, min), strict=True))))


def least_error(curves: Mapping[str, Curve], total: int, floors: Mapping[str, int] | None = None) -> dict[str, int]:
    """The counts with the least sum of errors on the hulls: exact, and exactly `total` together.

    floors: what each layer has at least; 0 by default.
    """
    kept = dict(floors or dict.fromkeys(curves, 0))
    least, most = sum(kept.values()), sum(curve.size for curve in curves.values())
    if not least <= total <= most:
        raise ConfigError(f"a budget must be between {least} and {most} weights, got {total}")
    pieces = [  # of the hulls above the floors: slope, layer, number of weights
        ((low - high) / (b - a), name, b - max(a, kept[name]))
        for name, curve in curves.items()
        for (a, high), (b, low) in pairwise(curve.hull())
        if b > kept[name]
    ]
    left = total - least
    for _, name, length in sorted(pieces, key=lambda piece: piece[0]):
        step = min(length, left)
        kept[name] += step
        left -= step
    return kept


def _between(points: Sequence[_Point]) -> list[_Point]:
    """Points of a power law between each two: straight lines where a count or an error is zero."""
    found: list[_Point] = []
    for (a, high), (b, low) in pairwise(points):
        found.append((a, high))
        if a == 0 or low <= 0:
            continue
        for step in range(1, STEPS):
            count = round(a * (b / a) ** (step / STEPS))
            if found[-1][0] < count < b:
                power = math.log(count / a) / math.log(b / a)
                found.append((count, high * (low / high) ** power))
    return [*found, points[-1]]


def _convex(points: Sequence[_Point]) -> list[_Point]:
    def slope(a: _Point, b: _Point) -> float:
        return (b[1] - a[1]) / (b[0] - a[0])

    hull: list[_Point] = []
    for point in points:
        while len(hull) > 1 and slope(hull[-2], hull[-1]) >= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull
