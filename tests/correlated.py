"""Small layers with correlated inputs in float64, for tests that compare a method with a slow reference."""

from __future__ import annotations

import torch
from torch import Tensor

from feta.calibration.stream import TensorStream
from feta.problem import Activation, LayerProblem, LayerSolution


def layer(
    seed: int = 0, m: int = 60, d_in: int = 8, d_out: int = 5, *, mean: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs A (m, d_in) around `mean`, weights W (d_in, d_out) and a bias (d_out,)."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return draw(m, d_in) @ draw(d_in, d_in) + mean, draw(d_in, d_out), draw(d_out)


def relu_layer(seed: int = 0, m: int = 400, d_in: int = 20, d_out: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """A layer in the middle of a network: inputs that are never negative, and outputs of about their size."""
    A, W, b = layer(seed, m, d_in, d_out, mean=0.0)
    return A.clamp_min(0) / 4, W / 2, b


def problem(
    A: Tensor,
    W: Tensor,
    b: Tensor | None,
    activation: Activation = Activation.RELU,
    chunk_rows: int = 13,
    **more: object,
) -> LayerProblem:
    """The layer as a problem whose targets are its own outputs, in chunks that do not divide its rows."""
    Z = A @ W if b is None else A @ W + b
    return LayerProblem(W, b, TensorStream(A, activation(Z), chunk_rows), activation, **more)


def extended(A: Tensor, bias: bool = True) -> Tensor:
    """A with a column of ones for the bias, where there is one."""
    return torch.cat([A, A.new_ones(len(A), 1)], 1) if bias else A


def stacked(W: Tensor | LayerSolution, b: Tensor | None = None) -> Tensor:
    """Weights, or those of a solution, with the bias as their last row, where there is one."""
    if isinstance(W, LayerSolution):
        W, b = W.U, W.bias
    return W if b is None else torch.cat([W, b[None]])
