"""Penalties: the prox against a numerical minimiser, Moreau's identity, whole groups."""

import pytest
import torch

from feta.errors import ConfigError
from feta.objective.penalty import L1, GroupLasso

PENALTIES = [L1(0.7), GroupLasso(0.9, dim=1), GroupLasso(0.9, dim=0)]


@pytest.fixture(params=PENALTIES, ids=str)
def penalty(request):
    return request.param


@pytest.fixture
def U():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("step", [0.1, 1.0, 3.0])
def test_prox_minimises_its_problem(penalty, U, step):
    def objective(V):
        return float(penalty.value(V) + (V - U).square().sum() / (2 * step))

    found = penalty.prox(U, step)
    best = objective(found)
    generator = torch.Generator().manual_seed(2)
    for scale in (1e-4, 1e-2, 1.0):
        for _ in range(100):
            other = found + scale * torch.randn(U.shape, generator=generator, dtype=U.dtype)
            assert objective(other) >= best - 1e-12
    assert objective(torch.zeros_like(U)) >= best
    assert objective(U) >= best


def test_moreau_identity(penalty, U):
    """x = prox_f(x) + prox_f*(x), where prox_f* is the projection on the dual ball."""
    rest = U - penalty.prox(U, 1.0)
    if isinstance(penalty, L1):
        dual = U.clamp(-penalty.strength, penalty.strength)
    else:
        dual = U * (penalty.strength / penalty.norms(U)).clamp_max(1)
    torch.testing.assert_close(rest, dual)


def test_value_by_hand():
    U = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert float(L1(2.0).value(U)) == 14
    assert float(GroupLasso(2.0, dim=1).value(U)) == 10  # one row of norm 5
    assert float(GroupLasso(2.0, dim=0).value(U)) == 14  # two columns, norms 3 and 4


def test_zero_groups_stay_zero_and_finite():
    U = torch.zeros(3, 2)
    assert torch.equal(GroupLasso(1.0).prox(U, 0.5), U)


def test_groups_leave_as_a_whole():
    U = torch.tensor([[0.1, -0.1], [3.0, 4.0]])
    shrunk = GroupLasso(1.0, dim=1).prox(U, 1.0)
    assert torch.equal(shrunk[0], torch.zeros(2))
    torch.testing.assert_close(shrunk[1], U[1] * 0.8)


@pytest.mark.parametrize(
    "make", [lambda: L1(-1.0), lambda: GroupLasso(float("nan")), lambda: GroupLasso(1.0, dim=2)]
)
def test_bad_hyperparameters(make):
    with pytest.raises(ConfigError, match="must be"):
        make()
