"""Small layers with correlated inputs in float64, for tests that compare a method with a slow reference."""

import torch

from feta.calibration.stream import TensorStream
from feta.problem import Activation, LayerProblem, LayerSolution


def layer(seed=0, m=60, d_in=8, d_out=5, *, mean=1.0):
    """Inputs A (m, d_in) around `mean`, weights W (d_in, d_out) and a bias (d_out,)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((m, d_in), (d_in, d_in), (d_in, d_out), (d_out,))
    A, mix, W, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return A @ mix + mean, W, b


def relu_layer(seed=0, m=400, d_in=20, d_out=12):
    """A layer in the middle of a network: inputs that are never negative, and outputs of about their size."""
    A, W, b = layer(seed, m, d_in, d_out, mean=0.0)
    return A.clamp_min(0) / 4, W / 2, b


def problem(A, W, b, activation=Activation.RELU, chunk_rows=13, **more):
    """The layer as a problem whose targets are its own outputs, in chunks that do not divide its rows."""
    Z = A @ W if b is None else A @ W + b
    return LayerProblem(W, b, TensorStream(A, activation(Z), chunk_rows), activation, **more)


def extended(A, bias=True):
    """A with a column of ones for the bias, where there is one."""
    return torch.cat([A, A.new_ones(len(A), 1)], 1) if bias else A


def stacked(W, b=None):
    """Weights, or those of a solution, with the bias as their last row, where there is one."""
    if isinstance(W, LayerSolution):
        W, b = W.U, W.bias
    return W if b is None else torch.cat([W, b[None]])
