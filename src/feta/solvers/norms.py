"""Spectral norms: of a matrix by its singular values, of a convolution as the operator it is.

A convolution with its stride, dilation, padding and groups is a linear map between images. Its norm is not
that of the reshaped kernel. `operator_norm` gives two values that enclose it:

    value   from below: the largest Ritz value of a block power iteration on the operator itself
    upper   from above, proven: the norm of a periodic convolution that contains the operator

The proof of `upper`. Zero padding embeds the image isometrically. Sorting its pixels by their place modulo the
stride, also an isometry, makes a strided convolution one of stride 1 with stride² times the channels. A
convolution of stride 1 of an n-pixel line with a k-tap kernel is a block (some rows, some columns) of the
circular one on n + k - 1 or more points, where nothing wraps around; a block's norm is at most the whole's.
The circular one is block-diagonal in Fourier space, one (c_out, c_in) matrix per frequency: its norm is the
largest of theirs. Other padding modes repeat pixels, each at most r times: a further factor sqrt(r).

All in float64, without directed rounding: `upper` is raised by a share far above the rounding errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.errors import ConfigError, ModelError
from feta.layers import padding_of

ROUNDING = 1e-9  # raises a proven value above what float64 arithmetic may have lost
BLOCK = 6  # vectors iterated at once: convergence depends on the gap to the seventh singular value


@dataclass(frozen=True)
class NormEstimate:
    """A norm enclosed: value <= norm <= upper, `converged` when the iteration for `value` settled."""

    value: float
    upper: float
    converged: bool = True
    iterations: int = 0


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value, by SVD in float64."""
    if matrix.ndim != 2:
        raise ConfigError(f"spectral_norm must get a matrix, got shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise ModelError("spectral_norm must get finite weights, got inf or NaN")
    return float(torch.linalg.matrix_norm(matrix.detach().double(), ord=2)) if matrix.numel() else 0.0


def largest_eigenvalue(H: Tensor, seed: int = 0, iterations: int = 100) -> float:
    """Of a Gram matrix, by power iteration: from below, good to a fraction of a percent on real data."""
    value, generator = 0.0, torch.Generator().manual_seed(seed)
    x = torch.randn(len(H), dtype=torch.float64, generator=generator).to(H.device)
    for _ in range(iterations):
        y = H.double() @ x
        norm = float(torch.linalg.vector_norm(y))
        if norm == 0:
            return torch.finfo(torch.float64).tiny
        value, x = norm / float(torch.linalg.vector_norm(x)), y / norm
    return value


def operator_norm(
    layer: nn.Module,
    input_shape: Sequence[int],
    *,
    weight: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 300,
    seed: int = 0,
) -> NormEstimate:
    """The norm of a Linear or Conv2d without its bias.

    layer: says how the weights act on images.
    input_shape: of one input, without the batch.
    weight: stands in for the layer's own, for the norm of a perturbation.
    tolerance, max_iterations, seed: of the iteration for the value from below.
    """
    upper = operator_upper(layer, input_shape, weight=weight)
    used: Any = layer.weight if weight is None else weight
    if not isinstance(layer, nn.Conv2d):
        return NormEstimate(spectral_norm(used), upper)
    if upper == 0:
        return NormEstimate(0.0, 0.0)
    # Of norm one: the iteration squares, and squares of very small or large weights leave the range of numbers.
    unit, block = used.detach().double() / upper, min(BLOCK, math.prod(input_shape))
    start = torch.randn(block, *input_shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Q = torch.linalg.qr(start.flatten(1).t())[0].to(unit.device)  # (inputs, block)
    value, settled, step = 0.0, False, 0
    while not settled and step < max_iterations:
        # The transpose of a linear map A is its own gradient.
        forward, pull = torch.func.vjp(lambda x: convolve(layer, x, unit), Q.t().reshape(block, *input_shape))[:2]
        Y, G = forward.flatten(1).t(), pull(forward)[0].flatten(1).t()  # A Q and A^T A Q
        _, singular, Vh = torch.linalg.svd(Y, full_matrices=False)
        value, step = float(singular[0]), step + 1
        residual = float(torch.linalg.vector_norm(G @ Vh[0] - value**2 * (Q @ Vh[0])))
        # With many singular values close together the leading pair may turn for long after its value is known.
        settled = residual <= tolerance * value**2 or value >= 1 - tolerance
        Q = torch.linalg.qr(G)[0]
    return NormEstimate(upper * min(value, 1.0), upper, settled, step)


def operator_upper(layer: nn.Module, input_shape: Sequence[int], *, weight: Tensor | None = None) -> float:
    """The proven value of `operator_norm` alone: no iteration, a Fourier transform of the kernel."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        raise ModelError(f"operator_norm must get a Linear or a Conv2d, got {type(layer).__name__}")
    used = (layer.weight if weight is None else weight).detach().double()
    if used.shape != layer.weight.shape:
        raise ConfigError(f"weight must have shape {tuple(layer.weight.shape)}, got {tuple(used.shape)}")
    if not bool(torch.isfinite(used).all()):
        raise ModelError("operator_norm must get finite weights, got inf or NaN")
    if not isinstance(layer, nn.Conv2d):
        return spectral_norm(used) * (1 + ROUNDING)
    if len(input_shape) != 3 or input_shape[0] != layer.in_channels:
        wanted = f"({layer.in_channels}, height, width), without the batch"
        raise ConfigError(f"input_shape must be {wanted}, got {tuple(input_shape)}")
    kernel, size = _stride_one(layer, used, input_shape)
    repeats = 1  # how often padding shows the most repeated pixel
    if layer.padding_mode != "zeros":
        pixels = torch.arange(math.prod(input_shape[1:]), dtype=torch.float64).reshape(1, 1, *input_shape[1:])
        repeats = int(torch.bincount(pad(layer, pixels).flatten().long()).max())
    return periodic_norm(kernel, size, layer.groups) * math.sqrt(repeats) * (1 + ROUNDING)


def periodic_norm(kernel: Tensor, size: tuple[int, int], groups: int = 1) -> float:
    """The norm of the circular convolution with kernel (c_out, c_in / groups, h, w) on size (H, W) images."""
    largest = 0.0
    # Of unit size: squares of very small or very large weights would leave the range of numbers.
    unit = float(kernel.abs().max()) if kernel.numel() else 0.0
    if unit == 0:
        return 0.0
    for block in (kernel.double() / unit).chunk(groups):
        small = block.transpose(0, 1) if block.shape[0] > block.shape[1] else block
        # A real kernel's spectrum at -w is the conjugate of that at w: half of one axis holds all the norms.
        lines = torch.fft.rfft(small, n=size[1]).permute(3, 2, 0, 1)  # (width / 2 + 1, taps, rows, columns)
        taps = torch.arange(lines.shape[1], dtype=torch.float64, device=kernel.device)
        for frequency in range(size[0]):  # one line of frequencies at a time: few matrices in memory
            spectrum = torch.einsum("wtij,t->wij", lines, torch.exp(-2j * torch.pi * frequency / size[0] * taps))
            largest = max(largest, float(torch.linalg.eigvalsh(spectrum @ spectrum.mH).max()))
    return unit * math.sqrt(max(largest, 0.0))


def convolve(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer with other weights, and without a bias where none is given."""
    return F.conv2d(pad(conv, x), weight, bias, conv.stride, 0, conv.dilation, conv.groups)


def pad(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """What the layer's kernel moves over: the images with their padding."""
    return F.pad(x, padding_of(conv), mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode)


def _stride_one(conv: nn.Conv2d, weight: Tensor, shape: Sequence[int]) -> tuple[Tensor, tuple[int, int]]:
    """The kernel with stride 1 and dilation 1 that does the same, and a torus on which nothing wraps."""
    (step_h, step_w), (gap_h, gap_w) = conv.stride, conv.dilation
    rows, columns = (gap * (k - 1) + 1 for gap, k in zip(conv.dilation, weight.shape[2:], strict=True))
    spread = weight.new_zeros(*weight.shape[:2], rows + -rows % step_h, columns + -columns % step_w)
    spread[:, :, :rows:gap_h, :columns:gap_w] = weight
    phases = spread.unflatten(3, (-1, step_w)).unflatten(2, (-1, step_h))  # (o, i, h, step_h, w, step_w)
    kernel = phases.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    left, right, top, bottom = padding_of(conv)
    height = -(-(shape[1] + top + bottom) // step_h) + kernel.shape[2] - 1
    width = -(-(shape[2] + left + right) // step_w) + kernel.shape[3] - 1
    return kernel, (height, width)
