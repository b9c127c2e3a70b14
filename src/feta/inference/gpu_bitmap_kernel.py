"""The kernel of gpu_bitmap.BitmapLinear, in Triton; importing this file needs the package triton."""

# mypy: ignore-errors
# Triton reads annotations as code: only constexpr may stand there.

import triton
import triton.language as tl


# An unknown stride keeps the compiler from giving each load a layout of its own and shuffling between them.
@triton.jit(do_not_specialize=["one"])
def multiply(
    x, words, bases, starts, values, parts, batch, height, row_words, x_words, span, one,
    BATCH: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """parts (splits, BATCH, height): W x for ROWS rows of W and span words of the columns, by tensor cores.

    x (batch, x_words) comes in words of four numbers.

    Tiles of 32 * WORDS columns are decoded in registers. A lane looks after four neighbouring columns: one count of
    bits finds the first value of the four, and each bit moves on by one. Every fourth column together makes a dot.
    """
    kind = values.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, WORDS * 8)[None, :]
    member = tl.arange(0, BATCH)[None, :]
    shift = lane % 8 * 4
    below = (1 << shift) - 1
    at_row = row * row_words + lane // 8 * one
    first = values + tl.load(starts + row * one)
    x_at = member * x_words + tl.arange(0, WORDS * 8)[:, None]
    x_row = tl.arange(0, WORDS * 8)[:, None] + member * 0
    total = tl.zeros([ROWS, BATCH], tl.float32)
    word = tl.program_id(1) * span
    stop = tl.minimum(word + span, row_words)
    while word < stop:
        bits = tl.load(words + at_row + word)
        base = tl.load(bases + at_row + word).to(tl.int32) & 0xFFFF
        at = first + (base + count_bits(bits & below))
        bits = bits >> shift
        x_four = tl.load(x + x_at + word * 8, (x_row < x_words - word * 8) & (member < batch), 0)
        for k in tl.static_range(4):
            value = tl.load(at, (bits & (1 << k)) != 0, 0.0)
            at += (bits >> k) & 1
            x_kind = (x_four >> (16 * k)).to(tl.int16).to(kind, bitcast=True)
            total = tl.dot(value, x_kind, total)
        word += WORDS
    out = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    tl.store(parts + (tl.program_id(1) * BATCH + member) * height + out, total, out < height)


@triton.jit
def finish(
    parts, bias, y, height, SPLITS: tl.constexpr, BATCH: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """y = the sum of the parts + bias, one row of the batch a program."""
    member = tl.program_id(1)
    out = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = out < height
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * BATCH + member) * height + out, inside, 0.0)
    if BIAS:
        total += tl.load(bias + out, inside, 0.0).to(tl.float32)
    tl.store(y + member * height + out, total.to(y.dtype.element_ty), inside)


@triton.jit
def count_bits(word):
    """Set bits of a 32-bit word whose highest four are clear; the compiler knows these lines as one instruction."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return ((((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF
