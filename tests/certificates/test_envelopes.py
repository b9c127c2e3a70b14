"""Envelopes: below and above their function on every point of the box, tight at the ends, rows moved rightly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from feta.certificates.relaxation import pool_envelope, relu_envelope
from feta.certificates.stages import MaxPool

POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d((3, 2), stride=(2, 3), padding=(1, 0)),
    nn.MaxPool2d(2, dilation=2, stride=1),
    nn.MaxPool2d(3, stride=2, ceil_mode=True),
    nn.MaxPool2d(1),
]


def box(generator, *shape):
    middle = torch.randn(*shape, generator=generator, dtype=torch.float64)
    half = torch.rand(*shape, generator=generator, dtype=torch.float64)
    half = half * torch.randint(0, 2, shape, generator=generator)  # some are points
    return middle - half, middle + half


def inside(generator, low, high):
    """Points of the box, corners among them."""
    share = torch.rand(low.shape, generator=generator, dtype=torch.float64)
    ends = torch.randint(0, 3, low.shape, generator=generator)
    return low + (high - low) * torch.where(ends == 2, share, ends.double())


def holds(envelope, low, high, function, generator):
    """<rows, f(x)> >= <rows', x> + constant for random rows and points."""
    output = function(low)
    rows = torch.randn(len(low), 5, *output.shape[1:], generator=generator, dtype=torch.float64)
    moved, constant = envelope.back(rows)
    assert moved.shape == (len(low), 5, *low.shape[1:])
    gaps = []
    for _ in range(40):
        x = inside(generator, low, high)
        value = (rows * function(x)[:, None]).flatten(2).sum(2)
        bound = (moved * x[:, None]).flatten(2).sum(2) + constant
        gaps.append(value - bound)
    assert torch.stack(gaps).min() >= -1e-12


def test_relu():
    generator = torch.Generator().manual_seed(0)
    low, high = box(generator, 3, 40)
    envelope = relu_envelope(low, high)
    holds(envelope, low, high, torch.relu, generator)
    for end in (low, high):  # the chord meets the function at both ends
        torch.testing.assert_close(
            torch.where(envelope.upper < 1, envelope.upper * end + envelope.offset, end.relu()), end.relu()
        )
    decided = (low >= 0) | (high <= 0)
    assert torch.equal(envelope.lower[decided], envelope.upper[decided])
    assert (envelope.offset[decided] == 0).all()


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_max_pool(pool):
    generator = torch.Generator().manual_seed(1)
    low, high = box(generator, 2, 3, 7, 8)
    stage = MaxPool("pool", (3, 7, 8), tuple(pool(low).shape[1:]), pool)
    holds(pool_envelope(stage, low, high), low, high, pool, generator)


def test_a_window_whose_winner_is_certain_is_exact():
    low = torch.tensor([[[[5.0, 0.0], [1.0, -2.0]]]], dtype=torch.float64)
    high = torch.tensor([[[[6.0, 4.0], [5.0, 2.0]]]], dtype=torch.float64)
    envelope = pool_envelope(MaxPool("pool", (1, 2, 2), (1, 1, 1), nn.MaxPool2d(2)), low, high)
    rows, constant = envelope.back(-torch.ones(1, 1, 1, 1, 1, dtype=torch.float64))
    assert rows.flatten().tolist() == [-1, 0, 0, 0]
    assert constant.item() == 0


def test_an_open_window_by_hand():
    """x in [0, 4], the rest at most 1: under the chord from (0, 1) to (4, 4)."""
    low = torch.tensor([[[[0.0, -1.0]]]], dtype=torch.float64)
    high = torch.tensor([[[[4.0, 1.0]]]], dtype=torch.float64)
    envelope = pool_envelope(MaxPool("pool", (1, 1, 2), (1, 1, 1), nn.MaxPool2d((1, 2))), low, high)
    assert (envelope.upper.item(), envelope.offset.item(), envelope.lower.item()) == (0.75, 1.0, 1.0)
