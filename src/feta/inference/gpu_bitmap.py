"""A linear layer as one bit a weight and the non-zeros, for GPUs at batch 8 to 16 and half to three quarters zeros.

    y = W x + bias,   2 bytes a non-zero and 6 bytes for every 32 weights of a row

Tensor cores multiply tiles that are decoded in registers, so that a batch of 16 costs what a batch of one costs.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from feta.errors import ModelError

MOST_ROWS = 16
TILE = 256  # rows end on a whole tile of columns, so that no load needs a mask
BLOCK = 128  # rows of the taller blocks; those that are added hold nothing


class BitmapLinear(nn.Module):
    """y = W x + bias in float16 or bfloat16, summed in float32; made by from_dense.

    On the CPU, and for more than 16 rows at once, the weights are decoded and multiplied as usual: right, not fast.
    """

    words: Tensor  # (rows, columns / 32) int32, the first column in the lowest bit
    bases: Tensor  # (rows, columns / 32) int16, read as unsigned: the row's non-zeros before each word
    starts: Tensor  # (rows,) int32: non-zeros before each row
    values: Tensor  # (non-zeros,)
    layout: Tensor  # out_features, in_features
    bias: Tensor | None

    def __init__(self, height: int, width: int, parts: dict[str, Tensor], bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = height, width
        for name, tensor in parts.items():
            self.register_buffer(name, tensor)
        self.register_buffer("layout", torch.tensor([height, width]))
        self.register_buffer("bias", bias)

    @classmethod
    def from_dense(cls, weight: Tensor, bias: Tensor | None = None) -> Self:
        """The layer of a dense weight (out, in)."""
        if weight.dtype not in (torch.float16, torch.bfloat16):
            raise ModelError(f"BitmapLinear must get float16 or bfloat16 weights, got {weight.dtype}; call .half()")
        height, width = weight.shape
        if width > 65535:
            raise ModelError(f"BitmapLinear must have at most 65535 inputs, got {width}")
        kept = None if bias is None else bias.detach().to(weight.dtype).clone()
        return cls(height, width, encode(weight.detach()), kept)

    def dense(self) -> Tensor:
        """The weight (out, in) this layer stands for."""
        bits = (self.words[..., None] >> torch.arange(32, dtype=torch.int32, device=self.words.device)) & 1
        weight = self.values.new_zeros(len(self.words), self.words.shape[1] * 32)
        weight[bits.view(weight.shape).bool()] = self.values
        return weight[: self.out_features, : self.in_features].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        if not x.is_cuda or not 0 < len(flat) <= MOST_ROWS or x.dtype != self.values.dtype:
            return functional.linear(x, self.dense().to(x), None if self.bias is None else self.bias.to(x))
        return self.launch(flat).view(*x.shape[:-1], self.out_features)

    def launch(self, x: Tensor, rows: int = 64, words: int = 4, warps: int = 4, splits: int = 8) -> Tensor:
        """y (batch, out) by the kernels; x (batch, in) is on the GPU or Triton interprets."""
        from feta.inference import gpu_bitmap_kernel as kernel

        x = functional.pad(x, (0, -self.in_features % 4)) if self.in_features % 4 else x.contiguous()
        row_words, height = self.words.shape[1], self.out_features
        span = -(-row_words // words // splits) * words
        parts = torch.empty(splits, MOST_ROWS, height, dtype=torch.float32, device=x.device)
        kernel.multiply[(-(-height // rows), splits)](
            x.view(torch.int64), self.words, self.bases, self.starts, self.values, parts,
            len(x), height, row_words, x.shape[1] // 4, span, 1,
            BATCH=MOST_ROWS, ROWS=rows, WORDS=words, num_warps=warps,
        )  # fmt: skip
        y = x.new_empty(len(x), height)
        kernel.finish[(-(-height // 256), len(x))](
            parts, self.bias, y, height, SPLITS=splits, BATCH=MOST_ROWS, BIAS=self.bias is not None, BLOCK=256
        )
        return y

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Buffers take the shapes of what is loaded: another weight has another number of non-zeros."""
        for name in ("words", "bases", "starts", "values"):
            if (found := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(found, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if prefix + "layout" in state_dict:
            self.out_features, self.in_features = self.layout.tolist()

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def encode(weight: Tensor) -> dict[str, Tensor]:
    """The buffers of a weight, by tensor operations on its own device."""
    height, width = weight.shape
    weight = functional.pad(weight, (0, -width % TILE, 0, -height % BLOCK))
    kept = (weight != 0).view(len(weight), -1, 32)
    bit = torch.arange(32, device=weight.device)
    powers = torch.where(bit < 31, 1 << bit, -(1 << 31))  # the highest bit is the sign of an int32
    words = torch.cat([(part * powers).sum(-1) for part in kept.split(1024)]).int()  # parts: int64 takes room
    before = kept.sum(-1).cumsum(-1)
    bases = functional.pad(before[:, :-1], (1, 0))
    starts = functional.pad(before[:, -1].cumsum(0)[:-1], (1, 0)).int()
    bases = bases.where(bases < 32768, bases - 65536).to(torch.int16)
    return {"words": words, "bases": bases, "starts": starts, "values": weight[weight != 0]}
