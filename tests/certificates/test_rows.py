"""Rows of linear stages against the operator written out as a matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from feta.certificates.chain import chain_of

LAYERS = [
    (nn.Linear(7, 5), (7,)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 5, 6)),
    (nn.Conv2d(2, 4, (3, 2), stride=2, padding=(0, 1), dilation=(2, 1)), (2, 7, 6)),
    (nn.Conv2d(4, 4, 3, groups=2, padding="same"), (4, 4, 4)),
    (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
]


def matrix(stage) -> Tensor:
    """(outputs, inputs), column by column."""
    size = int(torch.tensor(stage.in_shape).prod())
    eye = torch.eye(size, dtype=torch.float64).reshape(size, *stage.in_shape)
    return stage.with_weight(stage.weight).apply(eye).flatten(1).t()


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: str(value))
def test_rows_are_those_of_the_matrix(layer, shape):
    (stage,) = chain_of(nn.Sequential(layer), torch.randn(2, *shape)).stages
    dense = matrix(stage)
    units = torch.stack(
        [torch.randperm(len(dense), generator=torch.Generator().manual_seed(s))[:4] for s in (0, 1)]
    )
    rows, bias = stage.rows(units)
    assert rows.shape == (2, 4, *shape)
    torch.testing.assert_close(rows.flatten(2), dense[units])
    at_zero = stage.apply(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
    torch.testing.assert_close(bias, at_zero[units])
    norms = stage.row_norms.flatten()
    exact = dense.norm(dim=1)
    if getattr(layer, "padding_mode", "zeros") == "zeros":
        torch.testing.assert_close(norms, exact)
    assert (norms >= exact * (1 - 1e-12)).all()


def test_rows_of_a_mean():
    (stage,) = (
        s
        for s in chain_of(nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(1, 1, 1)), torch.randn(2, 1, 4, 6)).stages[
            :1
        ]
    )
    torch.testing.assert_close(stage.row_norms, torch.full((2, 3), 0.5, dtype=torch.float64))
