"""The stages a network is made of, each as a map between images of known shape with a known Lipschitz constant.

    Affine      x -> W x + b, a Linear or Conv2d with batch-norm folded in
    AvgPool     x -> R x C^T per channel, linear with weights >= 0
    MaxPool, ReLU, Flatten

Every stage has `in_shape` and `out_shape` (one sample), `apply` (a batch) and `lipschitz`, a proven upper value
of its Lipschitz constant in the Euclidean norm.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from feta.errors import ModelError
from feta.layers import padding_of
from feta.solvers.norms import ROUNDING, NormEstimate, convolve, operator_norm, spectral_norm

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> W x + b. `layer` says how W acts (a Linear, or a Conv2d's stride, padding, groups)."""

    name: str
    layer: nn.Linear | nn.Conv2d
    weight: Tensor  # as the layer stores it
    bias: Tensor  # (out,), zeros where the layer has none
    in_shape: Shape
    out_shape: Shape

    def apply(self, x: Tensor) -> Tensor:
        """W x + b."""
        return self._act(x, self.weight, self.bias)

    def linear(self, x: Tensor) -> Tensor:
        """W x."""
        return self._act(x, self.weight, None)

    def apply_abs(self, x: Tensor) -> Tensor:
        """|W| x: what the radius of a box becomes."""
        return self._act(x, self.weight.abs(), None)

    def transpose(self, y: Tensor) -> Tensor:
        """W^T y, from a batch of outputs to one of inputs."""
        return self._transpose(y, self.weight)

    def transpose_abs(self, y: Tensor) -> Tensor:
        """|W|^T y."""
        return self._transpose(y, self.weight.abs())

    @cached_property
    def norm(self) -> NormEstimate:
        """The spectral norm of W as an operator on `in_shape`."""
        return operator_norm(self.layer, self.in_shape, weight=self.weight)

    @cached_property
    def matrix_norm(self) -> float:
        """The spectral norm of the weights as a matrix (out, in), a kernel reshaped: less than the operator's."""
        return self.norm.value if self.weight.ndim == 2 else spectral_norm(self.weight.flatten(1))

    @property
    def lipschitz(self) -> float:
        return self.norm.upper

    @property
    def bias_norm(self) -> float:
        """The Euclidean norm of what the bias adds to an output; a convolution adds it at every position."""
        positions = math.prod(self.out_shape) // len(self.bias)
        return float(torch.linalg.vector_norm(self.bias.double())) * math.sqrt(positions)

    def minus(self, other: Affine) -> Affine:
        """The affine map x -> (W - W') x + (b - b')."""
        if self.weight.shape != other.weight.shape or self.in_shape != other.in_shape:
            raise ModelError(
                f"layer '{self.name}' must have the same shape in both networks, got "
                f"{tuple(self.weight.shape)} and {tuple(other.weight.shape)}"
            )
        other_weight, other_bias = other.weight.to(self.weight), other.bias.to(self.bias)
        return replace(self, weight=self.weight - other_weight, bias=self.bias - other_bias)

    def _act(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(self.layer, nn.Conv2d):
            return convolve(self.layer, x, weight, bias)
        return F.linear(x, weight, bias)

    def _transpose(self, y: Tensor, weight: Tensor) -> Tensor:
        if not isinstance(self.layer, nn.Conv2d):
            return y @ weight
        conv = self.layer
        if conv.padding_mode != "zeros":
            x = y.new_zeros(len(y), *self.in_shape)
            back: Tensor = torch.func.vjp(lambda x: convolve(conv, x, weight), x)[1](y)[0]
            return back
        left, right, top, bottom = padding_of(conv)
        channels, height, width = self.in_shape
        padded = (len(y), channels, height + top + bottom, width + left + right)
        x = conv2d_input(padded, weight, y, conv.stride, 0, conv.dilation, conv.groups)
        cut: Tensor = x[:, :, top : top + height, left : left + width]
        return cut


@dataclass(frozen=True, eq=False)
class ReLU:
    """x -> max(x, 0)."""

    name: str
    in_shape: Shape
    out_shape: Shape
    lipschitz: float = 1.0

    def apply(self, x: Tensor) -> Tensor:
        return x.relu()


@dataclass(frozen=True, eq=False)
class Flatten:
    """The same numbers in another shape."""

    name: str
    in_shape: Shape
    out_shape: Shape
    lipschitz: float = 1.0

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.out_shape)

    def transpose(self, y: Tensor) -> Tensor:
        return y.reshape(len(y), *self.in_shape)


@dataclass(frozen=True, eq=False)
class MaxPool:
    """The largest value of each window; `pool` says which windows."""

    name: str
    pool: nn.MaxPool2d
    in_shape: Shape
    out_shape: Shape

    def apply(self, x: Tensor) -> Tensor:
        result: Tensor = self.pool(x)
        return result

    @property
    def overlap(self) -> int:
        """The number of windows the busiest pixel is in: 1 where the stride is at least a window's extent."""
        pool = self.pool
        busiest = 1
        for axis in (0, 1):
            kernel, stride, padding, dilation = (
                _pair(v)[axis] for v in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
            )
            starts = [o * stride - padding for o in range(self.out_shape[1 + axis])]
            seen = [start + dilation * tap for start in starts for tap in range(kernel)]
            counts = Counter(place for place in seen if 0 <= place < self.in_shape[1 + axis])
            busiest *= max(counts.values(), default=1)
        return busiest

    @property
    def lipschitz(self) -> float:
        # |max over w of x - max over w of y|^2 <= sum over w of |x - y|^2, and a pixel is in `overlap` windows.
        return math.sqrt(self.overlap)


@dataclass(frozen=True, eq=False)
class AvgPool:
    """Means of windows: rows @ image @ columns^T for every channel, any padding and divisor included."""

    name: str
    rows: Tensor  # (height out, height in)
    columns: Tensor  # (width out, width in)
    in_shape: Shape
    out_shape: Shape

    def apply(self, x: Tensor) -> Tensor:
        return self.rows @ x @ self.columns.t()

    def transpose(self, y: Tensor) -> Tensor:
        return self.rows.t() @ y @ self.columns

    @cached_property
    def lipschitz(self) -> float:
        """Exact: the norm of a Kronecker product is the product of the norms."""
        return spectral_norm(self.rows) * spectral_norm(self.columns) * (1 + ROUNDING)


Stage = Affine | ReLU | Flatten | MaxPool | AvgPool


def window_means(pool: nn.AvgPool2d | nn.AdaptiveAvgPool2d, size_in: int, size_out: int, axis: int) -> Tensor:
    """(size_out, size_in): row o takes the mean over the o-th window along one axis."""
    means = torch.zeros(size_out, size_in, dtype=torch.float64)
    for place in range(size_out):
        if isinstance(pool, nn.AdaptiveAvgPool2d):
            start, end = place * size_in // size_out, -(-(place + 1) * size_in // size_out)
            count = end - start
        else:
            padding = _pair(pool.padding)[axis]
            start = place * _pair(pool.stride)[axis] - padding
            end = min(start + _pair(pool.kernel_size)[axis], size_in + padding)
            count = end - start
        inside = slice(max(start, 0), min(end, size_in))
        if isinstance(pool, nn.AvgPool2d):
            if not pool.count_include_pad:
                count = inside.stop - inside.start
            if pool.divisor_override:
                count = 1  # the caller divides
        means[place, inside] = 1 / count
    return means


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
