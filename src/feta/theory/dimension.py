"""Intrinsic dimension of data, estimated from rows in three ways, and how many balls cover the data.

    two_nn              nearest-neighbour ratios μ = r2 / r1 follow P(μ > t) = t^(−k): the slope of −ln(1 − F)
                        over ln μ, largest tenth left out (Facco et al. 2017)
    maximum_likelihood  1 / k = mean over points of mean over j < n of ln(T_n / T_j), T_j the distance to the j-th
                        neighbour (Levina and Bickel 2004, inverses averaged as MacKay and Ghahramani say)
    pca                 principal components that hold a share of the variance

The first two look at scales between neighbours and see curved manifolds; PCA sees flat ones and is an upper value for
the others. Estimates above about 2 log10(rows) are known to fall short (Eckmann and Ruelle 1992), noise of the scale
of r1 raises them, and on a lattice, where all ratios are one, two_nn is infinite. None of them is a bound.

A set is C_M-regular of dimension k when (C_M / r)^k balls of radius r cover it, for every r. Take the farthest row as
the next centre: n balls of a radius r_n cover the rows, and the first n centres are at least r_(n-1) apart. So

    estimate   max over n of r_n · n^(1/k)              (covers of the rows that were seen)
    lower      max over n of r_(n-1) / 2 · n^(1/k)      (proven: no ball of a smaller radius holds two centres)

Any C_M-regular set of this k that holds these rows has C_M >= lower. Rows that were not drawn may need further balls,
so no sample proves anything from above: a bound that uses the estimate is conditional on it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from feta.calibration.inputs import drawn
from feta.errors import ConfigError, check_range
from feta.gates import gated
from feta.theory.robustness import Manifold

DISCARDED = 0.1  # the largest ratios, where the density is least even
CHUNK = 500  # rows of the distance matrix at a time


@dataclass(frozen=True)
class Dimension:
    """Estimates of one cloud of points."""

    two_nn: float  # by the two nearest neighbours
    two_nn_error: float  # one standard error, k / sqrt(rows): sampling alone, not the bias
    maximum_likelihood: float  # by more neighbours
    pca: Mapping[float, int]  # share of the variance -> components
    rows: int  # different ones; copies say nothing
    ambient: int  # coordinates of a point


@gated
def intrinsic_dimension(
    rows: Tensor,
    *,
    neighbours: tuple[int, int] = (10, 20),
    energies: tuple[float, ...] = (0.9, 0.95, 0.99),
    n_rows: int = 2000,
    seed: int = 0,
) -> Dimension:
    """All three estimates of the dimension of a cloud of points.

    rows: floats, a sample per row; each is flattened.
    neighbours: the smallest and the largest neighbourhood of the maximum likelihood estimate.
    energies: the shares of the variance for which PCA counts components.
    n_rows: at most so many rows are used, drawn by `seed`.
    seed: for the choice of rows.

    Returns a Dimension. Raises ConfigError where there are too few different rows or they are not finite.

    >>> intrinsic_dimension(images).two_nn
    """
    points = sample_rows(rows, n_rows, seed)
    least, most = neighbours
    if not 2 <= least <= most:
        raise ConfigError(f"neighbours must be 2 <= first <= second, got {neighbours}")
    if len(points) < most + 2:
        got = f"got {len(points)}; use more samples or fewer neighbours"
        raise ConfigError(f"intrinsic_dimension must get at least {most + 2} different rows, {got}")
    distances, shares = nearest(points, most), pca(points, energies)
    k, likely = two_nn(distances), maximum_likelihood(distances, least, most)
    return Dimension(k, k / math.sqrt(len(points)), likely, shares, len(points), points.shape[1])


def two_nn(distances: Tensor) -> float:
    """From (rows, 2 or more) distances to the nearest neighbours, in order."""
    n = len(distances)
    kept = (distances[:, 1] / distances[:, 0]).log().sort().values[: max(2, round(n * (1 - DISCARDED)))]
    ranks = torch.arange(1, len(kept) + 1, dtype=kept.dtype, device=kept.device)
    heights, squares = -torch.log1p(-ranks / (n + 1)), (kept**2).sum()
    return float((kept * heights).sum() / squares) if squares > 0 else math.inf


def maximum_likelihood(distances: Tensor, least: int, most: int) -> float:
    """Mean over neighbourhoods of least … most points."""
    logs = distances.log()
    inverses = [float((logs[:, n - 1 : n] - logs[:, : n - 1]).mean()) for n in range(least, most + 1)]
    return fmean(1 / inverse if inverse > 0 else math.inf for inverse in inverses)


def pca(points: Tensor, energies: tuple[float, ...]) -> dict[float, int]:
    """The number of principal components that hold each share of the variance."""
    if not all(0 < energy <= 1 for energy in energies):
        raise ConfigError(f"energies must be in (0, 1], got {energies}")
    centred = points - points.mean(0)
    if centred.shape[1] <= len(centred):  # the smaller of the two Gram matrices has all the variance
        centred = centred.t()
    values = torch.linalg.eigvalsh(centred @ centred.t()).flip(0).clamp_min(0)
    shares = values.cumsum(0) / values.sum()
    return {e: int((shares < e * (1 - 1e-12)).sum()) + 1 for e in energies}


def nearest(points: Tensor, count: int) -> Tensor:
    """(rows, count) distances to the nearest other points, in order, a strip of the matrix at a time."""
    strips = []
    for start, part in enumerate(points.split(CHUNK)):
        strip = torch.cdist(part, points)
        strip[:, start * CHUNK :].fill_diagonal_(math.inf)  # no point is its own neighbour
        near = strip.topk(count, largest=False).indices
        # Found by matrix products, which lose small distances, and measured again by differences.
        strips.append(torch.stack([(part - points[rank]).norm(dim=1) for rank in near.t()], 1).sort(1).values)
    return torch.cat(strips)


def sample_rows(rows: Tensor, n_rows: int, seed: int) -> Tensor:
    """Different rows out of a batch, flattened, centred, in float64; a seeded choice where there are more."""
    if rows.ndim < 2 or not rows.is_floating_point() or not rows.numel():
        raise ConfigError(f"rows must be floats with samples as rows, got shape {tuple(rows.shape)}")
    check_range("sample_rows", ">= 3", n_rows=n_rows)
    rows = rows.detach().flatten(1)
    rows = rows[drawn(len(rows), n_rows, seed).to(rows.device)]
    points: Tensor = rows.double().unique(dim=0)
    if not bool(torch.isfinite(points).all()):
        raise ConfigError("rows must be finite, got inf or NaN")
    return points - points.mean(0)  # distances by matrix products are better around zero


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
    """(balls,) radius r_n at which the first n centres cover all points; the first is the one nearest to the mean."""
    centre = points[points.sub(points.mean(0)).norm(dim=1).argmin()]
    distance, radii = torch.full_like(points[:, 0], math.inf), []
    for _ in range(balls):
        distance = torch.minimum(distance, points.sub(centre).norm(dim=1))
        centre = points[distance.argmax()]
        radii.append(float(distance.max()))
    return torch.tensor(radii, dtype=torch.float64)


def regularity(rows: Tensor, dimension: float, *, balls: int = 200, n_rows: int = 2000, seed: int = 0) -> Regularity:
    """C_M for a dimension, from covers of up to `n_rows` rows by up to `balls` balls."""
    check_range("regularity", "> 0", dimension=dimension)
    points = sample_rows(rows, n_rows, seed)
    # A cover with nearly as many balls as rows counts rows, not volume.
    balls = min(balls, len(points) // 4)
    if balls < 4:
        raise ConfigError(f"regularity must get at least 16 different rows, got {len(points)}")
    radii = covering_radii(points, balls)
    counts, quarter = torch.arange(1, balls + 1, dtype=torch.float64), balls // 4
    scale, steps = counts ** (1 / dimension), torch.log(radii[quarter - 1] / radii[-1])
    estimate, lower = float((radii * scale).max()), float((radii[:-1] / 2 * scale[1:]).max())
    slope = float(torch.log(counts[-1] / quarter) / steps) if steps > 0 else math.inf
    return Regularity(dimension, estimate, lower, len(points), balls, slope)
