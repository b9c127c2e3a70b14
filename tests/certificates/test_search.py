"""The radius search: ends found to the tolerance, only accepted radii returned."""

from __future__ import annotations

import torch

from feta.certificates.radius import largest_radius


def test_it_finds_every_end_from_afar():
    ends = torch.tensor([1e-3, 0.2, 1.0, 7.0], dtype=torch.float64)
    found = largest_radius(
        lambda rows, radius: radius <= ends[rows], torch.full_like(ends, 0.5), probes=30, tolerance=0.01
    )
    assert ((found <= ends) & (found >= ends / 1.011)).all()


def test_what_it_returns_was_accepted():
    """A test that is not monotone: between 1 and 2 it fails, above it accepts again."""
    accepted: set[float] = set()

    def test(rows, radius):
        ok = (radius < 1) | (radius > 2)
        accepted.update(radius[ok].tolist())
        return ok & (radius < 5)

    found = largest_radius(test, torch.tensor([0.7, 1.5, 3.0], dtype=torch.float64))
    assert set(found.tolist()) <= accepted


def test_no_guess_and_no_pass_are_zero():
    guess = torch.tensor([0.0, 1.0, float("nan"), float("inf")], dtype=torch.float64)
    asked: list[int] = []

    def test(rows, radius):
        asked.extend(rows.tolist())
        return torch.zeros(len(rows), dtype=torch.bool)

    assert largest_radius(test, guess, probes=5).tolist() == [0, 0, 0, 0]
    assert set(asked) == {1}
