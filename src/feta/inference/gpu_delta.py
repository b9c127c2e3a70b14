"""A linear layer whose non-zeros are kept as gaps and values, for GPUs at batch 1 to 16 in half precision.

    y = W x + bias,   2.5 bytes a non-zero with gaps of 4 bits, 3 bytes with gaps of 8 bits

At batch 1 a layer costs the bytes it reads. The columns are cut into segments; a lane (a thread of the GPU) owns one
row's non-zeros inside one segment and finds each column by adding a gap to the one before, so that no lane waits for
another. Lanes of one block lie side by side in memory, chunk by chunk, padded to the longest; a lane that is done
reads nothing more. A gap too wide for its bits is bridged by entries of value zero. Rows go to blocks by their number
of non-zeros, so that the lanes of a block are about equally long.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from feta.errors import ModelError

MOST_ROWS = 16  # a batch beyond this is better served by tensor cores on the decoded weights
KINDS = (torch.float16, torch.bfloat16)
LANES = 1 << 17  # about what a GPU of 132 multiprocessors holds at once


class DeltaLinear(nn.Module):
    """y = W x + bias in float16 or bfloat16, summed in float32; made by from_dense.

    On the CPU, and for more than 16 rows at once, the weights are decoded and multiplied as usual: right, not fast.
    """

    gaps: Tensor  # (words, lanes) int32: gaps of 4 or 8 bits, the first in the lowest bits
    values: Tensor  # (words, lanes) int64: four values each
    starts: Tensor  # (blocks + 1,) int32: the first chunk of each block
    counts: Tensor  # (blocks, lanes) int16: the chunks of each lane
    order: Tensor  # (blocks * rows,) int32: the row of W that each place holds; out_features where it holds none
    layout: Tensor  # the numbers below, so that a saved layer can be loaded
    bias: Tensor | None

    def __init__(self, layout: list[int], parts: dict[str, Tensor], bias: Tensor | None) -> None:
        super().__init__()
        for name, tensor in parts.items():
            self.register_buffer(name, tensor)
        self.register_buffer("layout", torch.tensor(layout))
        self.register_buffer("bias", bias)
        self._read(layout)

    def _read(self, layout: list[int]) -> None:
        self.out_features, self.in_features, self.rows, self.segments, self.chunk, self.bits, kind = layout
        self.dtype = KINDS[kind]

    @classmethod
    def from_dense(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        rows: int = 32,
        segments: int = 0,
        chunk: int = 8,
        bits: int = 0,
    ) -> Self:
        """The layer of a dense weight (out, in).

        rows, segments: rows of a block and cuts of the columns, powers of two; 0 segments stands for a good number.
        bits: 4 or 8 for a gap; 0 takes what needs fewer bytes.
        """
        if weight.dtype not in KINDS:
            raise ModelError(f"DeltaLinear must get float16 or bfloat16 weights, got {weight.dtype}; call .half()")
        height, width = weight.shape
        segments = segments or good_segments(int(weight.count_nonzero()), height)
        bits = bits or fewer_bits(weight, -(-width // segments))
        layout = [height, width, rows, segments, chunk, bits, KINDS.index(weight.dtype)]
        kept = None if bias is None else bias.detach().to(weight.dtype).clone()
        return cls(layout, encode(weight.detach(), layout), kept)

    @property
    def segment(self) -> int:
        """Columns of a segment."""
        return -(-self.in_features // self.segments)

    def dense(self) -> Tensor:
        """The weight (out, in) this layer stands for."""
        lanes, chunks = self.rows * self.segments, self.values.shape[0] * 4 // self.chunk
        shifts = torch.arange(0, 32, self.bits, dtype=torch.int32, device=self.gaps.device)
        gaps = (self.gaps[:, None] >> shifts[:, None]) & ((1 << self.bits) - 1)  # (words, gaps of a word, lanes)
        walked = gaps.view(chunks * self.chunk, lanes).cumsum(0)
        blocks = torch.repeat_interleave(
            torch.arange(len(self.counts), device=gaps.device), self.starts.diff().long(), output_size=chunks
        ).repeat_interleave(self.chunk)
        before = torch.cat([walked.new_zeros(1, lanes), walked])[self.starts[:-1].long() * self.chunk]
        lane = torch.arange(lanes, device=gaps.device)
        column = walked - before[blocks] + lane // self.rows * self.segment
        row = self.order.long()[blocks[:, None] * self.rows + lane % self.rows]
        values = self.values.view(self.dtype).view(-1, lanes, 4).transpose(1, 2).reshape(-1, lanes)
        weight = values.new_zeros(self.out_features, self.in_features)
        real = values != 0
        weight[row[real], column[real]] = values[real]
        return weight

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        if not x.is_cuda or not 0 < len(flat) <= MOST_ROWS or x.dtype != self.dtype:
            return functional.linear(x, self.dense().to(x), None if self.bias is None else self.bias.to(x))
        return self.launch(flat).view(*x.shape[:-1], self.out_features)

    def launch(self, x: Tensor, prefetch: bool = True, cache: str = "") -> Tensor:
        """y (batch, out) by the kernel; x (batch, in) is on the GPU or Triton interprets."""
        from feta.inference import gpu_delta_kernel as kernel

        batch = 1 << (len(x) - 1).bit_length()
        words = {1: torch.int16, 2: torch.int32}.get(batch, torch.int64)
        if batch == 1:
            packed = x.contiguous()
        else:
            packed = x.new_empty(self.in_features, batch)
            grid = (-(-self.in_features // 128),)
            kernel.interleave[grid](x.contiguous(), packed, len(x), self.in_features, BATCH=batch, BLOCK=128)
        y = x.new_empty(len(x), self.out_features)
        kernel.multiply[(len(self.counts),)](
            packed.view(words), self.gaps, self.values, self.starts, self.counts, self.order, self.bias, y,
            len(x), self.out_features, self.in_features, self.segment,
            BATCH=batch, ROWS=self.rows, SEGMENTS=self.segments, CHUNK=self.chunk, BITS=self.bits,
            PREFETCH=prefetch, CACHE=cache, BIAS=self.bias is not None,
            num_warps=max(1, self.rows * self.segments // 32),
        )  # fmt: skip
        return y

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Buffers take the shapes of what is loaded: another weight has another number of chunks."""
        for name in ("gaps", "values", "starts", "counts", "order"):
            if (found := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(found, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if prefix + "layout" in state_dict:
            self._read(self.layout.tolist())

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bits={self.bits}, bias={self.bias is not None}"


def good_segments(nonzeros: int, height: int) -> int:
    """A power of two: lanes enough to keep a large GPU's memory busy, yet some fifty non-zeros for each of them."""
    most = min(LANES // max(1, height), nonzeros // max(1, height) // 48, 16)
    return 1 << (max(1, most).bit_length() - 1)


def fewer_bits(weight: Tensor, segment: int) -> int:
    """4 or 8: which gap takes fewer bytes, the zeros that bridge wide gaps counted in."""
    row, column = weight.nonzero(as_tuple=True)
    gap = gaps_of(row, column, segment)[0]
    cost = {bits: (16 + bits) * (1 + float(bridges(gap, bits).double().mean().nan_to_num())) for bits in (4, 8)}
    return min(cost, key=cost.__getitem__)


def bridges(gap: Tensor, bits: int) -> Tensor:
    """How many zeros stand in for a gap that does not fit its bits."""
    return (gap - 1).clamp_min(0) // ((1 << bits) - 1)


def gaps_of(row: Tensor, column: Tensor, segment: int) -> tuple[Tensor, Tensor]:
    """For non-zeros in the order of rows: the way to each from the one before in its segment, and who comes first."""
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = (row[1:] != row[:-1]) | (column[1:] // segment != column[:-1] // segment)
    gap = column % segment
    gap[1:] = torch.where(first[1:], gap[1:], column[1:] - column[:-1])
    return gap, first


def encode(weight: Tensor, layout: list[int]) -> dict[str, Tensor]:
    """The buffers of a weight, by tensor operations on its own device."""
    height, width, rows, segments, chunk, bits, _ = layout
    lanes, blocks, segment, device = rows * segments, -(-height // rows), -(-width // segments), weight.device
    fullest = weight.count_nonzero(1).argsort(descending=True, stable=True)
    order = functional.pad(fullest, (0, blocks * rows - height), value=height).int()
    weight = weight[fullest]
    row, column = weight.nonzero(as_tuple=True)
    gap, first = gaps_of(row, column, segment)

    # Entries: each non-zero after the zeros that bridge its gap.
    extra = bridges(gap, bits)
    source = torch.repeat_interleave(extra + 1)
    last = (extra + 1).cumsum(0) - 1  # the entry of each non-zero itself
    steps = torch.full_like(source, (1 << bits) - 1)
    steps[last] = gap - extra * ((1 << bits) - 1)
    numbers = weight.new_zeros(len(source))
    numbers[last] = weight[row, column]

    # The lane of each entry, and its place in that lane.
    lane = (row // rows) * lanes + column // segment * rows + row % rows
    begin = (last - extra)[first]  # the first entry of each lane that has any
    lane_of = lane[source]
    length = torch.bincount(lane_of, minlength=blocks * lanes)
    before = begin.repeat_interleave(length[lane[first]], output_size=len(source))
    place = torch.arange(len(source), device=device) - before
    counts = (-(-length // chunk)).view(blocks, lanes)
    starts = functional.pad(counts.amax(1).cumsum(0), (1, 0))
    block, within = lane_of // lanes, lane_of % lanes
    at = (starts[block] * chunk + place, within)  # entry of the block, lane

    total = int(starts[-1]) * chunk
    kept = weight.new_zeros(total // 4, lanes, 4)
    kept[at[0] // 4, at[1], at[0] % 4] = numbers
    per_word = 32 // bits
    small = torch.zeros(total // per_word, lanes, per_word, dtype=torch.uint8, device=device)
    small[at[0] // per_word, at[1], at[0] % per_word] = steps.to(torch.uint8)
    packed = small[..., ::2] | small[..., 1::2] << 4 if bits == 4 else small
    return {
        "gaps": packed.contiguous().view(torch.int32).squeeze(-1),
        "values": kept.view(torch.int64).squeeze(-1),
        "starts": starts.int(),
        "counts": counts.to(torch.int16),
        "order": order,
    }
