"""From a margin to a bound: against the formulas, and what a box is covered by."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feta.errors import ConfigError
from feta.theory.robustness import Manifold, Setting, log_sum


@given(st.floats(-20, 20), st.floats(0.5, 10), st.floats(0.1, 100), st.integers(2, 10), st.integers(1, 10**6))
def test_bounds_are_their_formulas(log_margin, k, regularity, classes, samples):
    setting = Setting(Manifold(k, regularity), classes, samples, 0.01)
    gamma = math.exp(log_margin)
    A = math.sqrt(math.log(2) * classes * 2 ** (k + 1) * regularity**k / samples)
    B = math.sqrt(2 * math.log(100) / samples)
    assert setting.paper(log_margin) == pytest.approx(math.log(A * gamma ** (-k / 2) + B), abs=1e-9)
    # Of all powers of two under the margin `sound` takes the largest that still needs more than one ball, or so.
    found = math.inf
    for z in range(-32, 40):
        if z * math.log(2) < log_margin:
            cells = classes * max(1.0, (2 * regularity / 2.0**z) ** k)
            share = 0.01 / (2 * (abs(z) + 1) * (abs(z) + 2))
            found = min(found, math.sqrt((2 * cells * math.log(2) + 2 * math.log(1 / share)) / samples))
    assert setting.sound(log_margin) >= math.log(found) - 1e-9
    if gamma <= 2 * regularity:
        assert setting.sound(log_margin) <= math.log(found) + math.log(2) * k / 2 + 1e-6


def test_a_wide_margin_gives_a_bound_that_says_something():
    bound = Setting(Manifold(1.0, 0.1), 2, 10**6).sound(math.log(0.5))
    assert math.exp(bound) < 0.01


@given(st.integers(1, 50), st.floats(0.1, 10), st.floats(0.001, 1))
def test_the_box_is_covered(size, width, share):
    """Cubes that lie in balls: their number is at most what the regularity promises."""
    manifold = Manifold.box(size, width)
    radius = share * width * math.sqrt(size) / 2
    cubes = size * math.log(math.ceil(width * math.sqrt(size) / (2 * radius)))
    assert cubes <= manifold.dimension * math.log(manifold.regularity / radius) + 1e-9


def test_log_sum():
    assert log_sum() == -math.inf
    assert log_sum(1000.0, 1000.0) == pytest.approx(1000 + math.log(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Manifold(0, 1), r"Manifold.dimension must be > 0 and finite, got 0"),
        (lambda: Manifold(1, math.inf), r"Manifold.regularity must be > 0 and finite, got inf"),
        (lambda: Setting(Manifold(1, 1), 2, 10, 1), r"delta must be in \(0, 1\), got 1"),
        (lambda: Setting(Manifold(1, 1), 2, 0), r"Setting.samples must be >= 1, got 0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
