"""The regularity constant of data, from how many balls cover it.

A set is C_M-regular of dimension k when (C_M / r)^k balls of radius r cover it, for every r. Taking the farthest
row as the next centre gives, for each count n, a radius r_n with two properties: n balls of radius r_n cover the
rows, and the first n centres are at least r_(n-1) from each other. So

    estimate   max over n of r_n · n^(1/k)              (covers of the rows that were seen)
    lower      max over n of r_(n-1) / 2 · n^(1/k)      (proven: no ball of a smaller radius holds two centres)

What they are worth: any set that holds these rows and is C_M-regular with this k has C_M >= lower. From above a
sample proves nothing: rows that were not drawn may need any number of further balls. A bound that uses the estimate
is conditional on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.errors import ConfigError
from feta.theory.dimension import sample_rows
from feta.theory.robustness import Manifold


@dataclass(frozen=True)
class Regularity:
    """C_M of rows for a given dimension."""

    dimension: float
    estimate: float
    lower: float
    rows: int
    balls: int  # the largest cover looked at
    slope: float  # −d ln n / d ln r between a quarter of the balls and all: the dimension these covers show

    @property
    def manifold(self) -> Manifold:
        return Manifold(self.dimension, self.estimate, "measured")


def covering_radii(points: Tensor, balls: int) -> Tensor:
    """(balls,) radius r_n at which the first n farthest-point centres cover all points; from the point nearest
    to the mean."""
    centre = int(points.sub(points.mean(0)).norm(dim=1).argmin())
    distance = points.sub(points[centre]).norm(dim=1)
    radii = []
    for _ in range(balls):
        farthest = int(distance.argmax())
        radii.append(float(distance[farthest]))
        distance = torch.minimum(distance, points.sub(points[farthest]).norm(dim=1))
    return torch.tensor(radii, dtype=torch.float64)


def regularity(
    rows: Tensor, dimension: float, *, balls: int = 200, n_rows: int = 2000, seed: int = 0
) -> Regularity:
    """C_M for a dimension, from covers of up to `n_rows` rows by up to `balls` balls."""
    if not dimension > 0:
        raise ConfigError(f"dimension must be > 0, got {dimension}")
    points = sample_rows(rows, n_rows, seed)
    # A cover with nearly as many balls as rows counts rows, not volume.
    balls = min(balls, len(points) // 4)
    if balls < 4:
        raise ConfigError(f"regularity must get at least 16 different rows, got {len(points)}")
    radii = covering_radii(points, balls)
    counts = torch.arange(1, balls + 1, dtype=torch.float64)
    scale = counts ** (1 / dimension)
    quarter = max(balls // 4, 1)
    steps = torch.log(radii[quarter - 1] / radii[-1])
    return Regularity(
        dimension=dimension,
        estimate=float((radii * scale).max()),
        lower=float((radii[:-1] / 2 * scale[1:]).max()),
        rows=len(points),
        balls=balls,
        slope=float(torch.log(counts[-1] / quarter) / steps) if steps > 0 else float("inf"),
    )
