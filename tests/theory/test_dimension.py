"""Estimators of dimension on sets whose dimension is known, and what covers prove."""

import math

import pytest
import torch

from feta.errors import ConfigError
from feta.theory import dimension
from feta.theory.dimension import intrinsic_dimension, regularity, sample_rows


def sphere(k: int, n: int = 1500, ambient: int = 30, seed: int = 0) -> torch.Tensor:
    """A k-dimensional sphere in a random (k + 1)-dimensional subspace: curved, without a border."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, k + 1, generator=generator, dtype=torch.float64)
    frame = torch.linalg.qr(torch.randn(ambient, k + 1, generator=generator, dtype=torch.float64))[0]
    return x / x.norm(dim=1, keepdim=True) @ frame.t()


def rolled_sheet() -> torch.Tensor:
    t, height = torch.rand(2, 1500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    angle = 1.5 * math.pi * (1 + 2 * t)
    return torch.stack([angle * angle.cos(), 20 * height, angle * angle.sin()], 1)


@pytest.mark.parametrize(("rows", "k"), [*((sphere(k), k) for k in (1, 2, 4, 7)), (rolled_sheet(), 2)])
def test_curved_sets_have_their_dimension(rows, k):
    found = intrinsic_dimension(rows)
    assert found.two_nn == pytest.approx(k, rel=0.1)
    assert found.maximum_likelihood == pytest.approx(k, rel=0.1)
    assert found.pca[0.99] == k + 1  # PCA sees the flat space around it
    assert (found.rows, found.ambient) == (1500, rows.shape[1])
    assert abs(found.two_nn - k) < 5 * found.two_nn_error + 0.1 * k


def test_high_dimensions_fall_short_as_the_page_says():
    assert intrinsic_dimension(torch.randn(500, 40, generator=torch.Generator().manual_seed(0))).two_nn < 36


# Slow references


def test_neighbours_against_all_pairs():
    points = sample_rows(sphere(3, n=520), 520, 0)
    slow = (points[:, None] - points[None]).norm(dim=2).sort(dim=1).values[:, 1:6]
    torch.testing.assert_close(dimension.nearest(points, 5), slow, rtol=1e-7, atol=1e-9)


def test_estimators_against_their_formulas():
    distances = dimension.nearest(sample_rows(sphere(3, n=60), 60, 0), 8)
    ratios = sorted((b / a).item() for a, b in distances[:, :2])
    kept = range(round(0.9 * 60))
    xs = [math.log(ratios[i]) for i in kept]
    ys = [-math.log(1 - (i + 1) / 61) for i in kept]
    slope = sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs)
    assert dimension.two_nn(distances) == pytest.approx(slope)
    estimates = []
    for n in (6, 7, 8):
        inverses = [sum(math.log(row[n - 1] / row[j]) for j in range(n - 1)) / (n - 1) for row in distances]
        estimates.append(1 / (sum(inverses) / len(inverses)))
    assert dimension.maximum_likelihood(distances, 6, 8) == pytest.approx(sum(estimates) / 3)


def test_pca_counts():
    rows = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.linalg.qr(rows - rows.mean(0))[0] * torch.tensor([3.0, 2.0, 1.0]).double()  # variance 9 : 4 : 1
    assert dimension.pca(rows, (0.5, 0.9, 0.95)) == {0.5: 1, 0.9: 2, 0.95: 3}
    wide = torch.randn(20, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    energy = torch.linalg.svdvals(wide - wide.mean(0)) ** 2
    shares = (energy.cumsum(0) / energy.sum()).tolist()
    assert dimension.pca(wide, (0.7,)) == {0.7: next(i for i, share in enumerate(shares, 1) if share >= 0.7)}


def test_scale_copies_and_choice_do_not_matter():
    rows = sphere(2, n=300)
    found = intrinsic_dimension(rows)
    again = intrinsic_dimension(torch.cat([1000 * rows + 5, 1000 * rows + 5]))
    assert again.rows == 300
    assert again.two_nn == pytest.approx(found.two_nn, rel=1e-6)
    part = intrinsic_dimension(sphere(2), n_rows=200, seed=1)
    assert part.rows == 200
    assert part == intrinsic_dimension(sphere(2), n_rows=200, seed=1)
    assert part != intrinsic_dimension(sphere(2), n_rows=200, seed=2)
    images = sphere(2, n=300).reshape(300, 5, 6)
    assert intrinsic_dimension(images).two_nn == found.two_nn


def test_rows_that_nearly_coincide():
    cloud = torch.rand(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 100
    plain = intrinsic_dimension(cloud)
    twins = intrinsic_dimension(torch.cat([cloud, cloud[:1] + 1e-9]))
    assert twins.maximum_likelihood == pytest.approx(plain.maximum_likelihood, rel=0.05)
    assert twins.two_nn == pytest.approx(plain.two_nn, rel=0.05)


# Covers


def test_radii_cover_and_centres_are_apart():
    points = sample_rows(sphere(2, n=200), 200, 0)
    radii = dimension.covering_radii(points, 12)
    centres = [int(points.norm(dim=1).argmin())]
    for n in range(12):
        distance = torch.cdist(points, points[centres]).min(1).values
        assert float(distance.max()) == pytest.approx(float(radii[n]))
        centres.append(int(distance.argmax()))
    apart = torch.cdist(points[centres], points[centres]) + 9 * torch.eye(13)
    assert float(apart.min()) >= float(radii[11]) - 1e-9


def test_regularity_of_a_square():
    """The unit square: n balls cover it only if n pi r² >= 1, so C_M >= 1 / sqrt(pi) for k = 2."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(2000, 2, generator=generator, dtype=torch.float64)
    found = regularity(rows, 2.0)
    assert found.lower <= found.estimate
    assert 1 / math.sqrt(math.pi) < found.estimate < 2
    assert found.slope == pytest.approx(2, rel=0.2)
    twice = regularity(2 * rows, 2.0)
    assert twice.estimate == pytest.approx(2 * found.estimate)
    assert twice.manifold.regularity == twice.estimate
    # Counts at this radius, by the definition.
    radii = dimension.covering_radii(sample_rows(rows, 2000, 0), 200)
    assert all((found.estimate / r) ** 2 >= n * (1 - 1e-9) for n, r in enumerate(radii.tolist(), 1))


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (lambda: intrinsic_dimension(torch.eye(3)), "at least 22 different rows, got 3"),
        (lambda: intrinsic_dimension(torch.ones(5, 5, dtype=torch.int64)), "rows must be floats with samples"),
        (lambda: intrinsic_dimension(sphere(2, n=50), neighbours=(1, 5)), "neighbours must be 2 <= first"),
        (lambda: intrinsic_dimension(sphere(2, n=50), energies=(2.0,)), r"energies must be in \(0, 1\], got"),
        (lambda: intrinsic_dimension(torch.full((30, 3), math.nan)), "finite"),
        (lambda: regularity(sphere(2), 0), "dimension must be > 0, got 0"),
        (lambda: regularity(torch.eye(4), 1), "at least 16 different rows"),
        (lambda: regularity(sphere(2), 1, n_rows=0), "n_rows must be >= 3"),
    ],
)
def test_bad_input(estimate, message):
    with pytest.raises(ConfigError, match=message):
        estimate()
