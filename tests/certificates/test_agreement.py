"""Agreement from samples: exact limits against binomial sums, coverage by enumeration, counts, refusals."""

import math

import pytest
import torch
from scipy.stats import binom, multinomial
from torch import nn

from feta.certificates.agreement import Agreement, agreement, lower_limit, upper_limit
from feta.errors import ConfigError, DataError


@pytest.mark.parametrize(("successes", "trials"), [(1, 1), (3, 7), (19, 20), (20, 20), (55, 60)])
@pytest.mark.parametrize("delta", [0.2, 0.01])
def test_the_limit_is_where_the_tail_is_delta(successes, trials, delta):
    p, more = lower_limit(successes, trials, delta), range(successes, trials + 1)
    tail = sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in more)
    assert tail == pytest.approx(delta, rel=1e-9)
    assert upper_limit(trials - successes, trials, delta) == 1 - lower_limit(successes, trials, delta)


def test_ends():
    assert lower_limit(0, 9, 0.05) == 0
    assert upper_limit(9, 9, 0.05) == 1
    assert lower_limit(100, 100, 0.01) == pytest.approx(0.01 ** (1 / 100))


@pytest.mark.parametrize("p", [0.5, 0.8, 0.92])
def test_the_limit_is_right_at_least_as_often_as_it_says(p):
    n, delta = 40, 0.05
    wrong = sum(binom.pmf(k, n, p) for k in range(n + 1) if lower_limit(k, n, delta) > p)
    assert 0 < wrong <= delta


@pytest.mark.parametrize(("p10", "p01"), [(0.3, 0.0), (0.2, 0.1), (0.1, 0.1), (0.1, 0.3)])
def test_the_bound_on_accuracy_lost_is_right_at_least_as_often_as_it_says(p10, p01):
    n, confidence = 25, 0.9
    chances = multinomial(n, [p10, p01, 1 - p10 - p01])
    wrong = 0.0
    for n10 in range(n + 1):
        for n01 in range(n + 1 - n10):
            found = Agreement(n, 0, confidence, n10, n01, 0).accuracy_lost_upper_bound
            wrong += chances.pmf([n10, n01, n - n10 - n01]) * (found < p10 - p01)
    assert 0 < wrong <= 1 - confidence


class Table(nn.Module):
    """Answers by rows of a table; inputs are row numbers."""

    def __init__(self, classes: list[int]) -> None:
        super().__init__()
        self.scores = nn.functional.one_hot(torch.tensor(classes), 3).float()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.scores[rows]


DENSE, PRUNED, TRUTH = [0, 1, 2, 0, 1, 2], [0, 1, 1, 1, 1, 0], [0, 1, 2, 1, 0, 1]


@pytest.mark.parametrize("size", [1, 4, 6])
def test_counts(size):
    rows, labels = torch.arange(6), torch.tensor(TRUTH)
    batches = zip(rows.split(size), labels.split(size), strict=True)
    found = agreement(Table(DENSE), Table(PRUNED), batches, 0.9)
    # Rows 0 and 1: both right; 2: only the dense one; 3: only the pruned one; 4: both wrong alike; 5: apart.
    assert found == Agreement(6, 3, 0.9, 1, 1, 2)
    assert found.accuracy_lost == 0
    assert found.lower_bound == lower_limit(3, 6, 1 - 0.9)


def test_without_labels_nothing_is_said_of_accuracy():
    found = agreement(Table(DENSE), Table(PRUNED), [(torch.arange(6), None)])
    assert (found.samples, found.agree, found.confidence) == (6, 3, 0.99)
    assert found.accuracy_lost is None
    assert found.accuracy_lost_upper_bound is None


def test_a_sample_without_a_finite_answer_is_named_by_its_place_in_all_of_the_data():
    data = torch.ones(30, 2)
    data[23, 1] = float("nan")
    with pytest.raises(DataError, match="got inf or NaN in held-out sample 23; leave such samples out"):
        agreement(nn.Identity(), nn.Identity(), ((batch, None) for batch in data.split(10)))


def test_refusals():
    with pytest.raises(DataError, match="at least one held-out sample"):
        agreement(Table(DENSE), Table(PRUNED), [])
    for words, ask in (
        (r"confidence must be in \(0, 1\), got 1", lambda: agreement(Table(DENSE), Table(PRUNED), [], 1)),
        (r"successes must be in .* got 3 of 2", lambda: lower_limit(3, 2, 0.1)),
        (r"delta must be in \(0, 1\), got 0", lambda: lower_limit(1, 2, 0)),
    ):
        with pytest.raises(ConfigError, match=words):
            ask()
