"""A Linear by torch's own CSR product, which is MKL's. Indices of 32 bits: with 64 it is slower than dense."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from feta.inference.base import ForLinear


class CsrLinear(ForLinear):
    """W x by torch.mv, and (W Xᵀ)ᵀ for batches."""

    values: Tensor
    columns: Tensor
    starts: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        weight = layer.weight.detach()
        row, column = weight.nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=layer.out_features).cumsum(0)
        starts = torch.cat([counts.new_zeros(1), counts]).int()
        super().__init__(layer, values=weight[row, column], columns=column.int(), starts=starts)

    def _matrix(self) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks)", UserWarning)
            size = (self.out_features, self.in_features)
            return torch.sparse_csr_tensor(self.starts, self.columns, self.values, size, check_invariants=True)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        counts = (self.starts[1:] - self.starts[:-1]).long()
        row = torch.repeat_interleave(torch.arange(self.out_features, device=counts.device), counts)
        zeros = self.values.new_zeros(self.out_features, self.in_features)
        return zeros.index_put((row, self.columns.long()), self.values), self.bias

    def plan(self) -> Any:
        known = self.values.dtype in (torch.float32, torch.float64) and torch.backends.mkl.is_available()
        return self._matrix() if known and self.values.device.type == "cpu" else None

    def fast(self, x: Tensor, plan: Any) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        y = torch.mv(plan, rows[0])[None] if len(rows) == 1 else (plan @ rows.t()).t()
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*x.shape[:-1], self.out_features)
