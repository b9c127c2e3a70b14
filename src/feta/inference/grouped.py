"""A sparse matrix as the kernels read it (feta.inference.packing), held as buffers of a module.

So it is copied, saved, loaded and moved like any module, and its weights can always be had back as a dense matrix.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from feta.errors import ModelError
from feta.inference.packing import BLOCK, DEPTH, ROWS, pack_groups

ACCUMULATE, RELU, LAST = 1, 2, 4  # as in feta.inference.kernels, which may be missing


class Block(nn.Module):
    """Up to 65,536 columns of a matrix."""

    values: Tensor
    columns: Tensor
    starts: Tensor
    rows: Tensor
    bias: Tensor

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.shape = (matrix.shape[0], matrix.shape[1])
        packed = pack_groups(matrix.cpu().numpy(), None if bias is None else bias.cpu().numpy())
        for name, array in packed.items():
            self.register_buffer(name, torch.from_numpy(array).clone())  # torch's memory is aligned

    def dense(self) -> Tensor:
        """(d_out, d_in), on the device and in the dtype of the values."""
        steps, groups = len(self.values), len(self.rows)
        counts = (self.starts[1:] - self.starts[:-1]).long()
        group = torch.repeat_interleave(torch.arange(groups, device=counts.device), counts, output_size=steps)
        row = self.rows.long()[group][:, :, None].expand(-1, -1, DEPTH)
        column = self.columns.long() & (BLOCK - 1)
        # Places that only fill up hold zeros: adding them changes nothing.
        return self.values.new_zeros(self.shape).index_put((row, column), self.values, accumulate=True)

    def shift(self) -> Tensor:
        return self.bias.new_zeros(self.shape[0]).index_put((self.rows.long().flatten(),), self.bias.flatten())

    def check(self) -> None:
        """Refuse a state that would have the kernels read or write somewhere else."""
        starts, rows, columns = (tensor.cpu().numpy() for tensor in (self.starts, self.rows, self.columns))
        d_out, d_in = self.shape
        sound = bool(starts[0] == 0 and starts[-1] == len(self.values) and (np.diff(starts) >= 0).all())
        sound &= len(starts) == len(rows) + 1 and self.columns.shape == self.values.shape
        sound &= rows.min(initial=0) >= 0 and rows.max(initial=0) < d_out
        sound &= self.values.shape[1:] == (ROWS, DEPTH) and columns.view(np.uint16).max(initial=0) < d_in
        if not sound:
            raise ModelError("a sparse layer's state must be that of its own matrix, got indices outside of it")

    def described(self, first_column: int, flags: int) -> list[int]:
        """The numbers that the kernels read, feta.inference.kernels.FIELDS."""
        parts = (self.starts, self.values, self.columns, self.rows, self.bias)
        return [len(self.rows), *(part.data_ptr() for part in parts), first_column, flags]


class Grouped(nn.Module):
    """W (d_out, d_in) and a bias, with or without a ReLU behind."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool = False) -> None:
        super().__init__()
        self.d_out, self.d_in = weight.shape
        self.has_bias, self.relu = bias is not None, relu
        parts = weight.detach().float().split(BLOCK, dim=1)
        shift = None if bias is None else bias.detach().float()
        self.blocks = nn.ModuleList(Block(part, None if index else shift) for index, part in enumerate(parts))

    @property
    def parts(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def dense(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as those of an nn.Linear."""
        weight = torch.cat([block.dense() for block in self.parts], 1)
        return weight, self.parts[0].shift() if self.has_bias else None

    def described(self) -> list[list[int]]:
        numbers, first_column = [], 0
        for index, block in enumerate(self.parts):
            last = index == len(self.parts) - 1
            flags = (ACCUMULATE if index else 0) | (LAST | (RELU if self.relu else 0) if last else 0)
            numbers.append(block.described(first_column, flags))
            first_column += block.shape[1]
        return numbers

    def extra_repr(self) -> str:
        return f"{self.d_in}, {self.d_out}, bias={self.has_bias}, relu={self.relu}"
