"""Penalties: the prox against a numerical minimiser, Moreau's identity, whole groups."""

import pytest
import torch

from feta.errors import ConfigError
from feta.objective.datafit import DataFit
from feta.objective.penalty import L1, PENALTIES, GroupLasso, Penalty, Regularised, penalty_of
from feta.problem import Activation


@pytest.fixture(params=PENALTIES.values(), ids=str)
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
    rest = U - penalty.prox(U, 0.7)
    dual = U * (0.7 / penalty.sizes(U)).clamp_max(1)
    torch.testing.assert_close(rest, dual)


def test_sizes_say_what_leaves_as_a_whole(penalty, U):
    sizes = penalty.sizes(U)
    assert penalty.grouped == (sizes.shape != U.shape)
    left = penalty.prox(U, 0.9)
    assert torch.equal(left != 0, (sizes > 0.9).expand(U.shape))


def test_the_table_takes_names_and_objects(penalty):
    assert isinstance(penalty, Penalty)
    assert penalty_of(penalty, "here") is penalty
    assert penalty_of("rows", "here") == GroupLasso(dim=1)
    with pytest.raises(ConfigError, match="unknown here 'row'; did you mean 'rows'"):
        penalty_of("row", "here")
    for wrong in (GroupLasso, 3, None):
        with pytest.raises(ConfigError, match="here must be a name or a Penalty object"):
            penalty_of(wrong, "here")


@pytest.mark.parametrize("with_bias", [True, False])
def test_the_bias_is_not_penalised(penalty, U, with_bias):
    F = Regularised(DataFit(Activation.RELU, with_bias), penalty, 2.0)
    weights = U[:-1] if with_bias else U
    assert F.penalise(U) == pytest.approx(2 * float(penalty.value(weights)))
    moved = F.prox(U, 0.25)
    torch.testing.assert_close(moved[: len(weights)], penalty.prox(weights, 0.5))
    assert torch.equal(moved[len(weights) :], U[len(weights) :])


def test_value_by_hand():
    U = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert float(L1().value(U)) == 7
    assert float(GroupLasso(dim=1).value(U)) == 5  # one row of norm 5
    assert float(GroupLasso(dim=0).value(U)) == 7  # two columns, norms 3 and 4


def test_groups_leave_as_a_whole_and_zero_groups_stay_finite():
    shrunk = GroupLasso(dim=1).prox(torch.tensor([[0.1, -0.1], [3.0, 4.0], [0.0, 0.0]]), 1.0)
    torch.testing.assert_close(shrunk, torch.tensor([[0.0, 0.0], [2.4, 3.2], [0.0, 0.0]]))


def test_bad_hyperparameters():
    with pytest.raises(ConfigError, match=r"GroupLasso.dim must be 0"):
        GroupLasso(dim=2)
