"""The kernels of gpu_bitmap.BitmapLinear, in Triton; importing this file needs the package triton.

Both take ROWS rows and walk the columns 32 * WORDS at a time. A lane looks after four neighbouring columns: one count
of bits finds the first value of the four, and each bit moves on by one.
"""

import triton
import triton.language as tl


@triton.jit
def multiply(
    x, words, bases, starts, values, bias, y, batch, height, row_words, x_words,
    BATCH: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """y = W x + bias by plain multiplications; x (batch, x_words) in words of four numbers."""
    kind = y.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    word = tl.arange(0, WORDS)[None, :, None]
    four = tl.arange(0, 8)[None, None, :]
    start = tl.load(starts + row)
    total = ()
    for _ in tl.static_range(BATCH):
        total += (tl.zeros([ROWS, WORDS, 8], tl.float32),)
    tile = 0
    while tile < row_words:
        bits, at = four_columns(words, bases, start, row, tile + word, four, row_words)
        x_at = (tile + word) * 8 + four
        x_four = ()
        for b in tl.static_range(BATCH):
            x_four += (tl.load(x + b * x_words + x_at, (x_at < x_words) & (b < batch), 0),)
        for k in tl.static_range(4):
            bit = (bits >> k) & 1
            value = tl.load(values + at, bit != 0, 0.0).to(tl.float32)
            at += bit
            total = add_products(total, value, x_four, k, BATCH, kind)
        tile += WORDS
    out = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = out < height
    for b in tl.static_range(BATCH):
        found = tl.sum(tl.sum(total[b], 2), 1)
        if BIAS:
            found += tl.load(bias + out, inside, 0.0).to(tl.float32)
        tl.store(y + b * height + out, found.to(kind), inside & (b < batch))


@triton.jit
def multiply_by_dots(
    x, words, bases, starts, values, bias, y, batch, height, row_words, x_words,
    BATCH: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The same by tensor cores: tiles are decoded in registers, every fourth column together, and multiplied."""
    kind = y.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    word = tl.arange(0, WORDS)[None, :, None]
    four = tl.arange(0, 8)[None, None, :]
    member = tl.arange(0, BATCH)[None, :]
    start = tl.load(starts + row)
    total = tl.zeros([ROWS, BATCH], tl.float32)
    tile = 0
    while tile < row_words:
        bits, at = four_columns(words, bases, start, row, tile + word, four, row_words)
        x_at = tile * 8 + tl.arange(0, WORDS * 8)[:, None]
        x_four = tl.load(x + member * x_words + x_at, (x_at < x_words) & (member < batch), 0)
        for k in tl.static_range(4):
            bit = (bits >> k) & 1
            value = tl.load(values + at, bit != 0, 0.0)
            at += bit
            x_kind = (x_four >> (16 * k)).to(tl.int16).to(kind, bitcast=True)
            total = tl.dot(tl.reshape(value, [ROWS, WORDS * 8]), x_kind, total)
        tile += WORDS
    out = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = out < height
    if BIAS:
        total += tl.load(bias + out, inside, 0.0).to(tl.float32)
    tl.store(y + member * height + out, total.to(kind), inside & (member < batch))


@triton.jit
def four_columns(words, bases, start, row, word, four, row_words):
    """The bits of four columns, and the place of the first value among them."""
    here = word < row_words
    bits = tl.load(words + row * row_words + word, here, 0)
    base = tl.load(bases + row * row_words + word, here, 0).to(tl.int32) & 0xFFFF
    lower = bits & ((1 << (4 * four)) - 1)
    return bits >> (4 * four), start + base + count_bits(lower)


@triton.jit
def count_bits(word):
    """Set bits of a 32-bit word whose highest four are clear; the compiler knows these lines as one instruction."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return ((((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF


@triton.jit
def add_products(total, value, x_four, k: tl.constexpr, BATCH: tl.constexpr, kind: tl.constexpr):
    """total + value * x at this column, one member of the tuple for each of the batch."""
    grown = ()
    for b in tl.static_range(BATCH):
        x_value = (x_four[b] >> (16 * k)).to(tl.int16).to(kind, bitcast=True).to(tl.float32)
        grown += (total[b] + value * x_value,)
    return grown
