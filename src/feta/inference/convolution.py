"""A convolution by our own kernel: 1 × 1 as it is, others with their inputs unfolded into columns.

Both give x as (samples, d_in, positions), where a non-zero weight meets neighbouring positions: a vector.
"""

from ctypes import c_int64
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feta.inference import calls
from feta.inference.base import ForInference, refuse_training
from feta.inference.grouped import Grouped
from feta.layers import padding_of

FEWEST = 4  # positions: a vector of the kernel


class SparseConv2d(ForInference):
    """A Conv2d with one group and zeros around."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.dilation = layer.kernel_size, layer.stride, layer.dilation
        self.in_channels, self.out_channels, self.pad = layer.in_channels, layer.out_channels, padding_of(layer)
        self.matrix = Grouped(layer.weight.detach().flatten(1), layer.bias)

    @property
    def pointwise(self) -> bool:
        return (*self.kernel_size, *self.stride, *self.pad) == (1, 1, 1, 1, 0, 0, 0, 0)

    @property
    def weight(self) -> Tensor:
        return self.matrix.dense()[0].unflatten(1, (self.in_channels, *self.kernel_size))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            refuse_training()
        if self._plan is None:
            self._plan = self._made()
        samples = x[None] if x.ndim == 3 else x
        padded = F.pad(samples, self.pad) if any(self.pad) else samples
        y = self._product(padded)
        return y[0] if x.ndim == 3 else y

    def _product(self, x: Tensor) -> Tensor:
        reach = [d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        height, width = ((n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, self.stride, strict=True))
        table, kernel, work = self._plan
        if table is None or x.dtype != torch.float32 or not x.is_cpu or height * width < FEWEST:
            weight, bias = self.matrix.dense()
            shaped = weight.unflatten(1, (self.in_channels, *self.kernel_size))
            return F.conv2d(x, shaped.to(x.dtype), bias, self.stride, 0, self.dilation)
        if not self.pointwise:
            x = F.unfold(x, self.kernel_size, self.dilation, 0, self.stride)
        x = x.contiguous()
        y = torch.empty((len(x), self.out_channels, height, width))
        parts = (len(table), x.data_ptr(), y.data_ptr(), len(x), self.matrix.d_in, self.matrix.d_out, height * width)
        numbers = (c_int64 * 13)(table.data_ptr(), *parts)
        calls.run(kernel, numbers, work * len(x) * height * width)
        return y

    def _made(self) -> Any:
        kernels, first = calls.kernels(), next(self.buffers())
        if kernels is None or first.device.type != "cpu" or first.dtype != torch.float32:
            return None, None, 0
        for block in self.matrix.parts:
            block.check()
        table = torch.tensor(self.matrix.described(), dtype=torch.int64)
        return table, kernels.columns, sum(block.values.numel() for block in self.matrix.parts)


def is_plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros"
