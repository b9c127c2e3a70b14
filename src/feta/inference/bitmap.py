"""A Linear in bitmap form: one bit per weight and the values that are not zero. For 50 to 80 % at small batches."""

from ctypes import c_int64
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feta.errors import ModelError
from feta.inference import calls
from feta.inference.base import ForLinear
from feta.inference.packing import pack_bitmap

WORD = 16
WORD_NS = 1.8  # about what sixteen weights take


class BitmapLinear(ForLinear):
    """Row by row: sixteen weights at a time are spread out of memory by their mask."""

    values: Tensor
    masks: Tensor
    starts: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        packed = pack_bitmap(layer.weight.detach().float().cpu().numpy())
        super().__init__(layer, **{name: torch.from_numpy(array).clone() for name, array in packed.items()})
        self.bias = None if self.bias is None else self.bias.float()

    def dense(self) -> tuple[Tensor, Tensor | None]:
        mask = self._mask()
        weight = self.values.new_zeros(mask.shape)
        weight[mask] = self.values
        return weight[:, : self.in_features].contiguous(), self.bias

    def _mask(self) -> Tensor:
        bits = torch.arange(WORD, device=self.masks.device, dtype=torch.int32)
        return (self.masks.int()[:, :, None] >> bits & 1).bool().flatten(1)

    def plan(self) -> Any:
        kernels = calls.kernels()
        if kernels is None or self.values.device.type != "cpu" or self.values.dtype != torch.float32:
            return None
        counts = self._mask()[:, : self.in_features].sum(1)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        # Set bits beyond the last column would have the kernel read the input where it has none.
        if not torch.equal(starts, self.starts) or int(starts[-1]) != len(self.values):
            raise ModelError("a sparse layer's state must be that of its own matrix, got a bitmap that does not fit")
        bias = torch.zeros(self.out_features) if self.bias is None else self.bias
        return kernels.bitmap, bias

    def fast(self, x: Tensor, plan: Any) -> Tensor:
        if x.dtype != torch.float32 or not x.is_cpu:
            return F.linear(x, *self.dense())
        kernel, bias = plan
        words = self.masks.shape[1]
        rows = F.pad(x, (0, words * WORD - self.in_features)).contiguous()
        y = torch.empty((*x.shape[:-1], self.out_features))
        batch = x.numel() // self.in_features
        parts = (self.masks, self.starts, rows, y)
        numbers = (c_int64 * calls.NUMBERS)(*(part.data_ptr() for part in parts), batch)
        numbers[6] = self.out_features
        numbers[7], numbers[8], numbers[9] = words, bias.data_ptr(), self.values.data_ptr()
        calls.run(kernel, numbers, WORD_NS * words * self.out_features * batch)
        return y
