"""Layers with correlated inputs in float64, for tests that compare a method with a slow reference."""

from __future__ import annotations

import torch
from torch import Tensor

from feta.calibration.stream import TensorStream
from feta.problem import LayerProblem


def layer(
    seed: int = 0, m: int = 60, d_in: int = 8, d_out: int = 5, *, mean: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs A (m, d_in) around `mean`, weights W (d_in, d_out) and a bias (d_out,)."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return draw(m, d_in) @ draw(d_in, d_in) + mean, draw(d_in, d_out), draw(d_out)


def problem(A: Tensor, W: Tensor, b: Tensor | None, **more: object) -> LayerProblem:
    """The layer as a problem, in chunks that do not divide its rows."""
    return LayerProblem(W, b, TensorStream(A, A @ W, 13), **more)
