"""Exact counts against fractions, masks against a stable sort, and every target that is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.errors import ConfigError
from feta.sparsity import Sparsity, check_share, measured, top_k_mask


@pytest.mark.parametrize(
    ("share", "n", "kept"),
    [
        (0.9, 15, 2),  # 1.5, which 1 - 0.9 in binary would make 1.4999
        (0.9, 784 * 60, 4704),
        (0.95, 3600, 180),
        (0.7, 10, 3),
        (0.0, 7, 7),
        (0, 7, 7),
        (0.999999, 10, 0),
        (np.float64(0.9), 15, 2),
    ],
)
def test_counts(share, n, kept):
    assert Sparsity(share).count(n) == kept


@given(st.integers(0, 10**9), st.integers(0, 9999))
def test_counts_are_those_of_the_decimal_fraction(n, ten_thousandths):
    exact = n * (1 - Fraction(ten_thousandths, 10_000))
    count = Sparsity(ten_thousandths / 10_000).count(n)
    assert abs(count - exact) <= Fraction(1, 2)
    assert count == round(exact)


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_counts_stay_within_the_layer(n, share):
    assert 0 <= Sparsity(share).count(n) <= n


def test_a_number_of_nonzeros_is_taken_as_it_is():
    assert Sparsity(nonzeros=3).count(10) == 3
    assert Sparsity(nonzeros=0).count(10) == 0
    with pytest.raises(ConfigError, match=r"Sparsity.nonzeros must be <= 10, got 11"):
        Sparsity(nonzeros=11).count(10)


REFUSED = [
    ({}, "either a share or a number"),
    ({"share": 0.5, "nonzeros": 3}, "either a share or a number"),
    ({"nonzeros": -1}, r"Sparsity.nonzeros must be >= 0, got -1"),
    ({"share": 90}, r"sparsity must be in \[0, 1\), got 90; write 0.9 for 90 %"),
    *(({"share": share}, r"sparsity must be in \[0, 1\), got") for share in (-0.1, 1, 1.0, 1.5, 100)),
    *(({"share": share}, r"sparsity must be in \[0, 1\), got") for share in (math.nan, math.inf, -math.inf)),
    *(
        ({"share": share}, r"must be a number in \[0, 1\)")
        for share in (True, False, "0.9", [0.9], torch.tensor(0.9))
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_targets_that_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Sparsity(**arguments)


def test_a_share_is_refused_where_it_was_asked_for():
    with pytest.raises(ConfigError, match=r"fc1 must be in \[0, 1\), got 1.0$"):
        check_share(1.0, "fc1")


scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=40)


@given(scores, st.integers(-1, 45))
def test_top_k_equals_a_stable_sort(values, k):
    tensor = torch.tensor(values)
    mask = top_k_mask(tensor, k)
    order = torch.argsort(tensor, descending=True, stable=True)
    expected = torch.zeros(len(values), dtype=torch.bool)
    expected[order[: max(k, 0)]] = True
    assert torch.equal(mask, expected)


def test_ties_are_broken_by_index_also_in_a_transposed_tensor():
    assert top_k_mask(torch.ones(2, 3), 4).tolist() == [[True, True, True], [True, False, False]]
    scores = torch.tensor([[1.0, 1.0], [2.0, 1.0]]).t()  # [[1, 2], [1, 1]]
    assert top_k_mask(scores, 2).tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_top_k_counts_in_every_dtype(dtype):
    scores = torch.rand(50, 40, generator=torch.Generator().manual_seed(0)).to(dtype)  # half precision: many ties
    for k in (1, 17, 1999):
        assert int(top_k_mask(scores, k).sum()) == k


def test_measured():
    assert measured(torch.tensor([[0.0, -0.0], [1.0, 1e-30]])) == 0.5
    assert measured(torch.zeros(3)) == 1.0
    assert measured(torch.empty(0)) == 1.0


@pytest.mark.parametrize("kind", ["spread", "ties", "sorted", "equal"])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9999])
def test_masks_of_many_scores_are_those_of_a_stable_sort(kind, share):
    """Enough of them that the k-th is looked for near where a sample says it is."""
    n, generator = 2**18 + 5, torch.Generator().manual_seed(0)
    scores = {
        "spread": torch.rand(n, generator=generator),
        "ties": torch.randint(0, 50, (n,), generator=generator).float(),
        "sorted": torch.arange(n).float(),
        "equal": torch.zeros(n),
    }[kind]
    expected = torch.zeros(n, dtype=torch.bool)
    expected[scores.sort(descending=True, stable=True).indices[: int(share * n)]] = True
    assert torch.equal(top_k_mask(scores, int(share * n)), expected)
