"""A convolution by our own kernel, without unfolding its input.

With zeros around it, an image is one row of numbers. The weight of channel c at (i, j) of the kernel meets it

    (c · height + i · dilation) · width + j · dilation

places further on, at every position alike. So a weight is one multiply-add with a vector of neighbouring positions;
those that hang over a line's end are computed too, and cut off. With a stride the input is unfolded first.
"""

from ctypes import c_int64

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feta.inference import calls
from feta.inference.base import ForInference, refuse_training
from feta.inference.chain import TILE, TILE_NS
from feta.inference.grouped import Grouped
from feta.inference.packing import BLOCK
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
    def weight(self) -> Tensor:
        """The dense weight: computed, for code that looks at it."""
        return self.matrix.dense()[0].reshape(self.out_channels, self.in_channels, *self.kernel_size)

    @property
    def bias(self) -> Tensor | None:
        return self.matrix.dense()[1]

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            refuse_training()
        if self._plan is None:
            self._plan = _Plan(self)
        plan: _Plan = self._plan
        samples = x[None] if x.ndim == 3 else x
        padded = F.pad(samples, self.pad) if any(self.pad) else samples
        y = plan.run(padded)
        return y[0] if x.ndim == 3 else y


class _Plan:
    """What the kernel reads, with a table of distances for each size of image; or dense weights."""

    def __init__(self, layer: SparseConv2d) -> None:
        self.layer, self.kernels, first = layer, calls.kernels(), next(layer.buffers())
        self.known = self.kernels is not None and first.device.type == "cpu" and first.dtype == torch.float32
        self.dense = None if self.known else (layer.weight, layer.bias)
        self.tables: dict[tuple[int, int], Tensor] = {}
        for block in layer.matrix.parts:
            block.check()
        self.tensors = list(layer.buffers())  # keeps the memory at the addresses
        self.described = torch.tensor(layer.matrix.described(), dtype=torch.int64)
        self.work = sum(block.values.numel() for block in layer.matrix.parts)

    def run(self, x: Tensor) -> Tensor:
        layer = self.layer
        reach = [d * (k - 1) + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        height, width = ((n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, layer.stride, strict=True))
        if not self.known or x.dtype != torch.float32 or not x.is_cpu or height * width < FEWEST or self._far(x):
            weight, bias = self.dense or (layer.weight, layer.bias)
            return F.conv2d(x, weight, bias, layer.stride, 0, layer.dilation)
        if layer.stride == (1, 1):
            x, line = x.contiguous(), x.shape[3]
            table = self._table(x.shape[2], line)
        else:
            x = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride).contiguous()
            line, table = width, self._table(0, x.shape[2])
        # The last line ends with its last true position, so that nothing beyond the image is read.
        positions = (height - 1) * line + width
        y = torch.empty((len(x), layer.out_channels, positions))
        sizes = (len(x), 4 * x[0].numel(), layer.out_channels, positions)
        places = (self.described.data_ptr(), len(self.described), x.data_ptr(), y.data_ptr())
        calls.run(
            self.kernels.columns,  # type: ignore[union-attr]
            (c_int64 * calls.NUMBERS)(*places, *sizes, table.data_ptr()),
            TILE_NS / TILE * self.work * len(x) * positions,
        )
        if line == width:
            return y.view(len(x), layer.out_channels, height, width)
        return y.as_strided((len(x), layer.out_channels, height, width), (*y.stride()[:2], line, 1)).contiguous()

    def _far(self, x: Tensor) -> bool:
        """Whether distances within an image are too large for the table's 32 bits."""
        return 4 * self.layer.matrix.d_in * x.shape[2] * x.shape[3] >= 1 << 31

    def _table(self, height: int, width: int) -> Tensor:
        """Distances in bytes of each weight of an output; height 0: of an unfolded input with `width` positions."""
        if (height, width) not in self.tables:
            c, (k, j), (di, dj) = self.layer.in_channels, self.layer.kernel_size, self.layer.dilation
            if height == 0:
                distances = torch.arange(c * k * j) * width
            else:
                down = torch.arange(k)[:, None] * di * width + torch.arange(j) * dj
                distances = (torch.arange(c)[:, None, None] * height * width + down).flatten()
            self.tables[height, width] = (4 * distances).int()
        return self.tables[height, width]


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether the kernel can do it. One block of columns: tiles overlap, and adding to them twice would be wrong."""
    return layer.groups == 1 and layer.padding_mode == "zeros" and layer.weight[0].numel() <= BLOCK
