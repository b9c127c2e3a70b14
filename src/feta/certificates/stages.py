"""The stages of a network. Each one maps images of a known shape to images of a known shape.

`in_shape` and `out_shape` are those of one sample. `lipschitz` is a proven upper value of the stage's
Lipschitz constant in the Euclidean norm. `transpose`, of the linear stages, maps outputs to inputs.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input
from torch.nn.modules.utils import _pair as pair

from feta.solvers.norms import ROUNDING, NormEstimate, convolve, operator_norm, pad, spectral_norm

Shape = tuple[int, ...]
OUTWARD = 1 + ROUNDING  # norms and radii are moved outward by it: float64 loses less than 1e-12 of them


@dataclass(frozen=True, eq=False)
class Stage(ABC):
    """One map of the network; `apply` takes a batch."""

    name: str
    in_shape: Shape
    out_shape: Shape

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor: ...

    @property
    def lipschitz(self) -> float:
        return 1.0


class ReLU(Stage):
    """x -> max(x, 0)."""

    def apply(self, x: Tensor) -> Tensor:
        return x.relu()


class Flatten(Stage):
    """The same numbers in another shape."""

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.out_shape)

    def transpose(self, y: Tensor) -> Tensor:
        return y.reshape(len(y), *self.in_shape)


@dataclass(frozen=True, eq=False)
class Normed:
    """What a folded batch-norm sees when the network is run: the layer itself, unfolded."""

    layer: "Affine"  # with |bias| + |mean| for its bias
    factor: Tensor  # (out,), the largest of 1 / deviation, |gamma| and their product

    def peak(self, largest: Tensor) -> Tensor:
        """At least the size of any number that meets the batch-norm's factor, given the largest |a| of each input."""
        return self.layer.absolute.apply(largest) + self.layer.per_channel(self.layer.bias)


@dataclass(frozen=True, eq=False)
class Affine(Stage):
    """x -> W x + b, batch-norm folded in. `layer` says how W acts: as a matrix, or as a Conv2d does."""

    layer: nn.Linear | nn.Conv2d
    weight: Tensor  # as the layer stores it
    bias: Tensor  # (out,), zeros where the layer has none
    normed: Normed | None = None  # the layer before a batch-norm was folded in

    def apply(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Conv2d):
            return convolve(self.layer, x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)

    def transpose(self, y: Tensor) -> Tensor:
        """W^T y."""
        conv = self.layer
        if isinstance(conv, nn.Linear):
            return y @ self.weight
        image = y.new_zeros(len(y), *self.in_shape)
        padded, unpad = torch.func.vjp(lambda x: pad(conv, x), image)[:2]
        x = conv2d_input(padded.shape, self.weight, y, conv.stride, 0, conv.dilation, conv.groups)
        return unpad(x)[0]  # type: ignore[no-any-return]

    def with_weight(self, weight: Tensor) -> "Affine":
        """The linear map by other weights, without a bias."""
        return replace(self, weight=weight, bias=torch.zeros_like(self.bias), normed=None)

    def per_channel(self, values: Tensor) -> Tensor:
        """Values (out,) so that they go with an output."""
        return values.reshape(-1, *[1] * (len(self.out_shape) - 1))

    @cached_property
    def absolute(self) -> "Affine":
        """x -> |W| x: what becomes of the half-widths of a box."""
        return self.with_weight(self.weight.abs())

    @property
    def terms(self) -> int:
        """The number of products in one output."""
        return self.weight[0].numel()

    @cached_property
    def norm(self) -> NormEstimate:
        """The spectral norm of W as an operator on `in_shape`."""
        return operator_norm(self.layer, self.in_shape, weight=self.weight)

    @property
    def lipschitz(self) -> float:
        return self.norm.upper

    @cached_property
    def matrix_norm(self) -> float:
        """The norm of the weights as a matrix (out, in): at most the operator's norm."""
        return self.norm.value if self.weight.ndim == 2 else spectral_norm(self.weight.flatten(1))

    @property
    def bias_norm(self) -> float:
        """The Euclidean norm of what the bias adds to an output; a convolution adds it at every position."""
        positions = math.prod(self.out_shape) // len(self.bias)
        return float(torch.linalg.vector_norm(self.bias.double())) * math.sqrt(positions)

    @cached_property
    def row_norms(self) -> Tensor:
        """The Euclidean norm of each row of W, in the shape of an output."""
        if isinstance(self.layer, nn.Conv2d) and self.layer.padding_mode != "zeros":
            # Padding repeats pixels, whose weights then add up; no row is longer than the operator's norm.
            return self.weight.new_full(self.out_shape, self.lipschitz)
        return self.with_weight(self.weight.square()).apply(self.weight.new_ones(1, *self.in_shape))[0].sqrt()

    def rows(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """The rows (n, R, ...) and biases (n, R) of units (n, R), which count through the flat output."""
        bias = self.bias[units // math.prod(self.out_shape[1:])]
        if self.weight.ndim == 2:
            return self.weight[units], bias
        ones = self.weight.new_zeros(*units.shape, math.prod(self.out_shape)).scatter(2, units[..., None], 1)
        return self.transpose(ones.reshape(-1, *self.out_shape)).unflatten(0, units.shape), bias


@dataclass(frozen=True, eq=False)
class AvgPool(Stage):
    """Means of windows: down @ image @ across^T for every channel, with any padding and divisor."""

    down: Tensor  # (height out, height in): the means along one axis
    across: Tensor  # (width out, width in)

    def apply(self, x: Tensor) -> Tensor:
        return self.down @ x @ self.across.t()

    def transpose(self, y: Tensor) -> Tensor:
        return self.down.t() @ y @ self.across

    @property
    def absolute(self) -> "AvgPool":
        return self

    def sums(self, x: Tensor) -> Tensor:
        """What is added up before it is divided."""
        return (self.down != 0).to(x) @ x @ (self.across != 0).to(x).t()

    @property
    def terms(self) -> int:
        return math.prod(int((means != 0).sum(1).max()) for means in (self.down, self.across))

    @cached_property
    def lipschitz(self) -> float:
        """Exact: the norm of a Kronecker product is the product of the norms."""
        return spectral_norm(self.down) * spectral_norm(self.across) * OUTWARD

    @property
    def row_norms(self) -> Tensor:
        return torch.outer(self.down.norm(dim=1), self.across.norm(dim=1))


Summing = Affine | AvgPool  # the stages whose outputs are sums of products, and so get rounded


@dataclass(frozen=True, eq=False)
class MaxPool(Stage):
    """The largest value of each window; `pool` says which windows."""

    pool: nn.MaxPool2d

    def apply(self, x: Tensor) -> Tensor:
        return self.pool(x)  # type: ignore[no-any-return]

    @cached_property
    def pixels(self) -> Tensor:
        """(window, positions): the numbers of the pixels in each window; padding counts as one pixel more."""
        pool, sizes = self.pool, self.in_shape[1:]
        kernel, stride, before, dilation = map(pair, (pool.kernel_size, pool.stride, pool.padding, pool.dilation))
        # To the end of the last window: beyond the edge with ceil_mode, or short of it, and then negative.
        bottom, right = (
            (out - 1) * stride[a] + dilation[a] * (kernel[a] - 1) + 1 - before[a] - sizes[a]
            for a, out in enumerate(self.out_shape[1:])
        )
        numbers = torch.arange(math.prod(sizes), dtype=torch.float64).view(1, 1, *sizes)
        padded = F.pad(numbers, (before[1], right, before[0], bottom), value=math.prod(sizes))
        return F.unfold(padded, kernel, dilation, 0, stride)[0].long()

    def windows(self, x: Tensor) -> Tensor:
        """(n, channels, window, positions): the values in every window, -inf for padding."""
        return F.pad(x.flatten(2), (0, 1), value=-math.inf)[..., self.pixels.to(x.device)]

    @property
    def lipschitz(self) -> float:
        """The root of the number of windows the busiest pixel is in."""
        # |max over w of x - max over w of y|^2 <= sum over w of |x - y|^2, added up over the windows w.
        counts = torch.bincount(self.pixels.flatten(), minlength=math.prod(self.in_shape[1:]) + 1)
        return math.sqrt(int(counts[:-1].max()))


def window_means(pool: nn.AvgPool2d | nn.AdaptiveAvgPool2d, size_in: int, size_out: int, axis: int) -> Tensor:
    """(size_out, size_in): row o takes the mean over the o-th window along one axis."""
    units = torch.eye(size_in, dtype=torch.float64)[None]
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        return F.adaptive_avg_pool1d(units, size_out)[0].t()
    kernel, stride, padding = (pair(v)[axis] for v in (pool.kernel_size, pool.stride, pool.padding))
    means = F.avg_pool1d(units, kernel, stride, padding, pool.ceil_mode, pool.count_include_pad)[0].t()
    # A divisor of the user's own divides plain sums, and does so once for both axes.
    return means if pool.divisor_override is None else (means != 0).double()


def length(values: Tensor) -> Tensor:
    """(n,) Euclidean norms of a batch."""
    return torch.linalg.vector_norm(values.flatten(1), dim=1)  # type: ignore[no-any-return]
