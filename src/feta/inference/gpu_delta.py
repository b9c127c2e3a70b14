"""A linear layer whose non-zeros are kept as gaps and values, for GPUs at batch 1 to 16 in half precision.

    y = W x + bias,   2.5 bytes a non-zero with gaps of 4 bits, 3 bytes with gaps of 8 bits

At batch 1 a layer costs the bytes it reads. The columns are cut into segments; a lane (a thread of the GPU) owns one
row's non-zeros inside one segment and finds each column by adding a gap to the one before, so that no lane waits for
another. Lanes of one block lie side by side in memory, chunk by chunk, padded to the longest; a lane that is done
reads nothing more. A gap too wide for its bits is bridged by entries of value zero. Rows go to blocks by their number
of non-zeros, so that the lanes of a block are about equally long.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feta.inference.base import ForLinear

KINDS = (torch.float16, torch.bfloat16)
MOST_ROWS = 16  # a batch beyond this is better served by tensor cores on the decoded weights
ROWS, SEGMENTS, CHUNK = 16, 32, 8  # rows of a block, cuts of the columns, entries read at once: the best of 15 tried


class DeltaLinear(ForLinear):
    """y = W x + bias in float16 or bfloat16, summed in float32.

    For more than 16 rows at once the weights are decoded and multiplied as usual: right, not fast.
    """

    gaps: Tensor  # (words, lanes) int32: gaps of 4 or 8 bits, the first in the lowest bits
    values: Tensor  # (words, lanes) int64: four values each
    starts: Tensor  # (blocks + 1,) int32: the first chunk of each block
    counts: Tensor  # (blocks, lanes) int16: the chunks of each lane
    order: Tensor  # (blocks * ROWS,) int32: the row of W that each place holds; out_features where it holds none
    like: Tensor  # nothing, in the dtype that the layer was moved to

    def __init__(self, layer: nn.Linear) -> None:
        weight, segment = layer.weight.detach(), -(-layer.in_features // SEGMENTS)
        bits = fewer_bits(weight, segment)
        super().__init__(layer, **encode(weight, bits), like=weight.new_empty(0))
        self.kind, self.segment, self.bits = weight.dtype, segment, bits

    def dense(self) -> tuple[Tensor, Tensor | None]:
        lanes, chunks = ROWS * SEGMENTS, self.values.shape[0] * 4 // CHUNK
        shifts = torch.arange(0, 32, self.bits, dtype=torch.int32, device=self.gaps.device)
        gaps = (self.gaps[:, None] >> shifts[:, None]) & ((1 << self.bits) - 1)  # (words, gaps of a word, lanes)
        walked = gaps.view(chunks * CHUNK, lanes).cumsum(0)
        blocks = torch.repeat_interleave(
            torch.arange(len(self.counts), device=gaps.device), self.starts.diff().long(), output_size=chunks
        ).repeat_interleave(CHUNK)
        before = torch.cat([walked.new_zeros(1, lanes), walked])[self.starts[:-1].long() * CHUNK]
        lane = torch.arange(lanes, device=gaps.device)
        column = walked - before[blocks] + lane // ROWS * self.segment
        row = self.order.long()[blocks[:, None] * ROWS + lane % ROWS]
        values = self.values.view(self.kind).view(-1, lanes, 4).transpose(1, 2).reshape(-1, lanes)
        weight = values.new_zeros(self.out_features, self.in_features)
        real = values != 0
        weight[row[real], column[real]] = values[real]
        return weight.to(self.like.dtype), self.bias

    def plan(self) -> Any:
        return True if self.values.is_cuda and self.like.dtype == self.kind else None

    def fast(self, x: Tensor, plan: Any) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        if not 0 < len(flat) <= MOST_ROWS or x.dtype != self.kind:
            return functional.linear(x, *self.dense())
        with torch.cuda.device_of(x):  # Triton launches on the current device
            return self.launch(flat).view(*x.shape[:-1], self.out_features)

    def launch(self, x: Tensor) -> Tensor:
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
            BATCH=batch, ROWS=ROWS, SEGMENTS=SEGMENTS, CHUNK=CHUNK, BITS=self.bits, BIAS=self.bias is not None,
            num_warps=ROWS * SEGMENTS // 32,
        )  # fmt: skip
        return y


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


def encode(weight: Tensor, bits: int) -> dict[str, Tensor]:
    """The buffers of a weight, by tensor operations on its own device."""
    height, width = weight.shape
    lanes, blocks, segment, device = ROWS * SEGMENTS, -(-height // ROWS), -(-width // SEGMENTS), weight.device
    fullest = weight.count_nonzero(1).argsort(descending=True, stable=True)
    order = functional.pad(fullest, (0, blocks * ROWS - height), value=height).int()
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
    lane = (row // ROWS) * lanes + column // segment * ROWS + row % ROWS
    begin = (last - extra)[first]  # the first entry of each lane that has any
    lane_of = lane[source]
    length = torch.bincount(lane_of, minlength=blocks * lanes)
    before = begin.repeat_interleave(length[lane[first]], output_size=len(source))
    place = torch.arange(len(source), device=device) - before
    counts = (-(-length // CHUNK)).view(blocks, lanes)
    starts = functional.pad(counts.amax(1).cumsum(0), (1, 0))
    block, within = lane_of // lanes, lane_of % lanes
    at = (starts[block] * CHUNK + place, within)  # entry of the block, lane

    total = int(starts[-1]) * CHUNK
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
