"""Factors, the damping ladder, and what is said when it ends."""

import pytest
import torch

from feta.errors import ModelError
from feta.problem import Status
from feta.solvers.refit import factor


def positive(d: int = 6, seed: int = 0) -> torch.Tensor:
    A = torch.randn(4 * d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return A.t() @ A


@pytest.mark.parametrize("relative", [0.0, 1e-3, 1.0])
def test_factor_solve_and_inverse(relative):
    H, C = positive(), torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = factor(H, relative)
    damped = H + relative * H.diagonal().mean() * torch.eye(6)
    assert found.status is Status.OK
    assert found.damping == pytest.approx(relative * float(H.diagonal().mean()))
    torch.testing.assert_close(found.L @ found.L.t(), damped)
    torch.testing.assert_close(found.solve(C), torch.linalg.solve(damped, C))
    torch.testing.assert_close(found.inverse(), torch.linalg.inv(damped))


def test_float32_is_factored_in_float64():
    H = positive().float()
    found = factor(H)
    assert found.L.dtype == torch.float64
    assert found.solve(torch.ones(6, 1)).dtype == torch.float64
    torch.testing.assert_close(found.L @ found.L.t(), H.double())


def test_dead_and_equal_inputs_are_damped_and_said_to_be():
    H = positive()
    H[2], H[:, 2] = 0, 0
    H[4], H[:, 4] = H[3], H[:, 3].clone()
    H[4, 4] = H[3, 3]
    found = factor(H)
    assert found.status is Status.DAMPED
    assert 0 < found.damping <= 1e-9 * float(H.diagonal().mean())  # the least on the ladder that does
    torch.testing.assert_close(found.L @ found.L.t(), H, rtol=1e-6, atol=1e-6)


def test_no_inputs_at_all_alive_need_the_least_damping_unless_more_is_asked_for():
    found = factor(torch.zeros(3, 3))
    assert (found.status, found.damping) == (Status.DAMPED, 1e-12)
    assert factor(torch.zeros(3, 3), 1e-3).status is Status.OK


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_the_end_of_the_ladder_is_an_error_that_names_the_last_damping(bad):
    H = positive()
    H[0, 0] = bad * float(H.diagonal().sum())
    with pytest.raises(ModelError, match=r"6 x 6 Gram matrix .* even with damping 0\.01"):
        factor(H)
