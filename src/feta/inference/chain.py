"""The layer of our own kernel: a chain of sparse Linear layers with ReLUs between them, in one call."""

import threading
from collections.abc import Sequence
from ctypes import addressof, c_int64
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.inference import calls
from feta.inference.base import ForInference, check_features, refuse_training
from feta.inference.grouped import Grouped

TILE = 16
ROW_NS, TILE_NS = 0.2, 0.6  # about what a non-zero takes for one row, and for a tile of them


class Chain(ForInference):
    """Sparse layers with ReLUs between them, in one call of the kernel; often a single layer."""

    def __init__(self, matrices: Sequence[Grouped]) -> None:
        super().__init__()
        self.matrices = nn.ModuleList(matrices)
        self.in_features, self.out_features = matrices[0].d_in, matrices[-1].d_out

    @property
    def layers(self) -> list[Grouped]:
        return [matrix for matrix in self.matrices if isinstance(matrix, Grouped)]

    @property
    def weight(self) -> Tensor:
        """The dense weight of a single layer: computed, for code that looks at it."""
        return self.dense()[0]

    @property
    def bias(self) -> Tensor | None:
        return self.dense()[1]

    def dense(self) -> tuple[Tensor, Tensor | None]:
        if len(self.layers) != 1:
            raise AttributeError(f"weight must be asked of a single layer, got a chain of {len(self.layers)}")
        return self.layers[0].dense()

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            refuse_training()
        if self._plan is None:
            self._plan = _Plan(self)
        plan: _Plan = self._plan
        if plan.dense is not None or x.dtype is not torch.float32 or not x.is_cpu:
            return plan.run_dense(x)
        shape = x.shape
        if shape[-1:] != plan.features:
            check_features(x, self.in_features)
        if not x.is_contiguous():
            x = x.contiguous()
        if len(shape) == 2:
            batch, y = shape[0], torch.empty((shape[0], plan.d_out))
        else:
            batch, y = x.numel() // self.in_features, torch.empty((*shape[:-1], plan.d_out))
        plan.run(x.data_ptr(), y.data_ptr(), batch)
        return y


class _Plan:
    """Addresses for the kernel, with the tensors that they belong to; or dense weights where it cannot work."""

    def __init__(self, chain: Chain) -> None:
        self.layers, self.dense = chain.layers, None
        first, kernels = next(chain.buffers()), calls.kernels()
        if kernels is None or first.device.type != "cpu" or first.dtype != torch.float32:
            self.dense = self._dense()
            return
        for layer in self.layers:
            for block in layer.parts:
                block.check()
        self.tensors = list(chain.buffers())  # keeps the memory at the addresses
        rows = [numbers for layer in self.layers for numbers in layer.described()]
        self.table = torch.tensor(rows, dtype=torch.int64)
        self.d_in, self.d_out, self.features = chain.in_features, chain.out_features, (chain.in_features,)
        self.last = len(rows) - len(self.layers[-1].parts)  # the first block that writes the outputs
        self.widest = -(-max(self.d_in, *(layer.d_out for layer in self.layers)) // TILE) * TILE
        self.work = sum(block.values.numel() for layer in self.layers for block in layer.parts)
        self.entry, self.address = kernels.chain.ctypes, kernels.chain.address
        self.local = threading.local()

    def run(self, x: int, y: int, batch: int) -> None:
        team = calls.team_for(self.work * (ROW_NS if batch == 1 else TILE_NS * -(-batch // TILE)))
        try:
            numbers, address, row = self.local.own
        except AttributeError:
            numbers, address, row = self.local.own = self._numbers()
        numbers[2], numbers[3], numbers[4] = x, y, batch
        if batch > 1:
            tiles = torch.empty(2 * team * TILE * self.widest)
            numbers[7], numbers[8] = tiles.data_ptr(), 4 * TILE * self.widest
        else:
            numbers[7], numbers[8] = row.data_ptr(), 4 * self.widest
        if team == 1:
            numbers[11] = 0  # alone
            self.entry(address)
        else:
            calls.parallel(self.address, numbers, team)

    def _numbers(self) -> tuple[Any, int, Tensor]:
        """Those of the calling thread: some are set anew in every call, and other threads have theirs."""
        numbers = (c_int64 * calls.NUMBERS)(self.table.data_ptr(), len(self.table))
        numbers[5], numbers[6], numbers[9] = self.d_in, self.d_out, self.last
        return numbers, addressof(numbers), torch.empty(2 * self.widest)  # a row between layers, for a batch of one

    def run_dense(self, x: Tensor) -> Tensor:
        for (weight, bias), relu in self.dense or self._dense():
            x = F.linear(x, weight, bias)
            x = x.relu() if relu else x
        return x

    def _dense(self) -> list[tuple[tuple[Tensor, Tensor | None], bool]]:
        return [(layer.dense(), layer.relu) for layer in self.layers]
