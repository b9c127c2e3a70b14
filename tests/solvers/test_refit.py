"""The dense refit against its own normal equations, solved the long way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from feta.calibration.stream import TensorStream
from feta.problem import LayerProblem, Status
from feta.solvers.refit import refit_dense


def problem(m: int = 60, d_in: int = 5, d_out: int = 3, bias: bool = True, dtype=torch.float64) -> LayerProblem:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    A, B = draw(m, d_in), draw(m, d_out) + 2
    return LayerProblem(draw(d_in, d_out), draw(d_out) if bias else None, TensorStream(A, B, 7))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ridge", [1e-4, 1.0])
def test_the_minimum_of_its_objective(bias, ridge):
    given = problem(bias=bias)
    found = refit_dense(given, ridge)
    A = given.stream.A
    E = torch.cat([A, torch.ones(len(A), 1, dtype=A.dtype)], 1) if bias else A
    W = given.trained
    r = ridge * float((E.t() @ E).diagonal().mean())
    expected = torch.linalg.solve(E.t() @ E + r * torch.eye(len(W)), E.t() @ given.stream.B + r * W)
    torch.testing.assert_close(replace(given, W=found.U, bias=found.bias).trained, expected)
    assert found.status is Status.OK


def test_outputs_a_layer_can_give_are_given():
    given = problem()
    A = given.stream.A
    truth, offset = torch.randn(5, 3, dtype=A.dtype), torch.randn(3, dtype=A.dtype)
    found = refit_dense(LayerProblem(given.W, given.bias, TensorStream(A, A @ truth + offset)), ridge=1e-12)
    torch.testing.assert_close(found.U, truth)
    torch.testing.assert_close(found.bias, offset)


def test_inputs_the_data_says_nothing_about_keep_their_weights():
    given = problem()
    A = given.stream.A.clone()
    A[:, 2] = 0
    found = refit_dense(LayerProblem(given.W, given.bias, TensorStream(A, given.stream.B)))
    torch.testing.assert_close(found.U[2], given.W[2])


@pytest.mark.parametrize("bias", [True, False])
def test_dtype_and_the_problem_are_kept(bias):
    given = problem(bias=bias, dtype=torch.float32)
    before = given.W.clone()
    found = refit_dense(given)
    assert found.U.dtype == torch.float32
    assert (found.bias is not None) == bias
    assert torch.equal(given.W, before)


def test_bias_rows():
    given = problem()
    assert torch.equal(given.trained, torch.cat([given.W, given.bias[None]]))
    found = given.solved(given.trained)
    assert torch.equal(found.U, given.W)
    assert torch.equal(found.bias, given.bias)
    assert given.solved(given.W).bias is given.bias  # no row for it: the bias stays
    plain = problem(bias=False)
    assert plain.trained is plain.W
    assert plain.solved(plain.W).bias is None
