"""An order for N:M against all orders of a small layer; it never keeps less than the order it is given."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.patterns import NofM
from feta.solvers.reordering import exchanged_order


def kept(E, n, m):
    return float(E.where(NofM(n, m).mask(E), 0).sum())


@given(st.integers(0, 99), st.integers(2, 5), st.integers(2, 4), st.data())
def test_keeps_more_and_only_changes_places(seed, groups, m, data):
    n = data.draw(st.integers(1, m - 1))
    E = torch.rand(groups * m, 7, generator=torch.Generator().manual_seed(seed))
    order = exchanged_order(E, n, m)
    assert sorted(order.tolist()) == list(range(groups * m))
    assert kept(E[order], n, m) >= kept(E, n, m) - 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_is_near_the_best_of_all_orders(seed):
    E = torch.rand(6, 5, generator=torch.Generator().manual_seed(seed)) ** 2
    best = max(kept(E[list(order)], 1, 3) for order in permutations(range(6)))
    assert kept(E[exchanged_order(E, 1, 3)], 1, 3) >= 0.97 * best


def test_large_channels_of_one_group_are_parted():
    E = torch.ones(8, 4)
    E[:4] = 100  # all four in the first group: two of them would go
    order = exchanged_order(E, 2, 4)
    assert kept(E[order], 2, 4) == 4 * 400
