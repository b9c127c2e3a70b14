"""Least-squares refits on Gram matrices.

    dense:    V = argmin ||A V - T||_F^2 + r ||V - W||_F^2  =  (H + r I)^-1 (C + r W)

The ridge pulls towards the trained weights, not towards zero: inputs the data says nothing about
keep what training gave them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from feta.calibration.statistics import cross, gram
from feta.problem import LayerProblem, LayerSolution
from feta.solvers.cholesky import factor


def refit_dense(problem: LayerProblem, ridge: float = 1e-4) -> LayerSolution:
    """The dense layer that best gives the original outputs from the inputs it now receives."""
    W, has_bias = problem.trained.double(), problem.bias is not None
    H = gram(problem.rows, with_bias=has_bias).H
    C = cross(problem.rows, lambda A, B: B, with_bias=has_bias)
    solved = factor(H, ridge)
    V = solved.solve(C + solved.damping * W).to(problem.W.dtype)
    U, bias = split_bias_row(V, has_bias)
    return LayerSolution(U, bias, solved.status)


def with_bias_row(W: Tensor, bias: Tensor | None) -> Tensor:
    """(d_in [+ 1], d_out): the bias as the last row."""
    return W if bias is None else torch.cat([W, bias[None, :]])


def split_bias_row(V: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    return (V[:-1].contiguous(), V[-1].clone()) if has_bias else (V, None)
