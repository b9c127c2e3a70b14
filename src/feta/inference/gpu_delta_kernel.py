"""The kernels of gpu_delta.DeltaLinear, in Triton; importing this file needs the package triton.

Every lane walks one row's non-zeros inside one segment of the columns. The lanes of a warp belong to neighbouring
rows and the same segment, so that they read neighbouring entries of x at the same time: few cache lines a load.
"""

# mypy: ignore-errors
# Triton reads annotations as code: only constexpr may stand there.

import triton
import triton.language as tl


@triton.jit
def interleave(x, out, batch, width, BATCH: tl.constexpr, BLOCK: tl.constexpr):
    """x (batch, width) as (width, BATCH), so that one load brings one column of the whole batch."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    row = tl.arange(0, BATCH)[None, :]
    inside = column < width
    tl.store(out + column * BATCH + row, tl.load(x + row * width + column, inside & (row < batch), 0.0), inside)


@triton.jit
def multiply(
    x, gaps, values, starts, counts, order, bias, y, batch, height, width, segment,
    BATCH: tl.constexpr, ROWS: tl.constexpr, SEGMENTS: tl.constexpr, CHUNK: tl.constexpr,
    BITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """y = W x + bias for ROWS rows of W.

    A chunk is CHUNK non-zeros of each lane: words of 32 bits that hold gaps of BITS bits, words of 64 bits that hold
    four values. x holds BATCH numbers of a column side by side, in words of as many bytes.
    """
    LANES: tl.constexpr = ROWS * SEGMENTS
    GAPS: tl.constexpr = 32 // BITS
    block = tl.program_id(0)
    lane = tl.arange(0, LANES)
    start = tl.load(starts + block).to(tl.int64)
    steps = (tl.load(starts + block + 1) - start).to(tl.int32)
    mine = tl.load(counts + block * LANES + lane).to(tl.int32)
    gap_at = gaps + start * (LANES * CHUNK // GAPS) + lane
    value_at = values + start * (LANES * CHUNK // 4) + lane
    WORDS: tl.constexpr = BATCH // 4 if BATCH > 2 else 1
    x_at = x + tl.minimum((lane // ROWS) * segment, width - 1) * WORDS  # the last segments may hold no column
    total = ()
    for _ in tl.static_range(BATCH):
        total += (tl.zeros([LANES], tl.float32),)
    gap_words, value_words = chunk_of(gap_at, value_at, mine > 0, LANES, CHUNK, GAPS)
    step = 0
    while step < steps:
        now_gaps, now_values = gap_words, value_words
        gap_at += LANES * CHUNK // GAPS
        value_at += LANES * CHUNK // 4
        # The next chunk is on its way while this one is worked on.
        gap_words, value_words = chunk_of(gap_at, value_at, step + 1 < mine, LANES, CHUNK, GAPS)
        for k in tl.static_range(CHUNK):
            x_at += ((now_gaps[k // GAPS] >> (k % GAPS * BITS)) & ((1 << BITS) - 1)) * WORDS
            value = part(now_values[k // 4], k % 4, y.dtype.element_ty)
            total = add_products(total, value, x_at, BATCH, y.dtype.element_ty)
        step += 1
    row = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    inside = row < height
    for b in tl.static_range(BATCH):
        found = tl.sum(tl.reshape(total[b], [SEGMENTS, ROWS]), 0)
        if BIAS:
            found += tl.load(bias + row, inside, 0.0).to(tl.float32)
        tl.store(y + b * height + row, found.to(y.dtype.element_ty), inside & (b < batch))


@triton.jit
def chunk_of(gap_at, value_at, live, LANES: tl.constexpr, CHUNK: tl.constexpr, GAPS: tl.constexpr):
    """The words of one chunk; a lane that has none left reads nothing and gets zeros, which stay where they are."""
    gap_words = ()
    for k in tl.static_range(CHUNK // GAPS):
        gap_words += (tl.load(gap_at + k * LANES, live, 0),)
    value_words = ()
    for k in tl.static_range(CHUNK // 4):
        value_words += (tl.load(value_at + k * LANES, live, 0),)
    return gap_words, value_words


@triton.jit
def part(word, k: tl.constexpr, kind: tl.constexpr):
    """The k-th half-precision number of a word, as float32."""
    return (word >> (16 * k)).to(tl.int16).to(kind, bitcast=True).to(tl.float32)


@triton.jit
def add_products(total, value, x_at, BATCH: tl.constexpr, kind: tl.constexpr):
    """total + value * x at this column, one member of the tuple for each of the batch."""
    WORDS: tl.constexpr = BATCH // 4 if BATCH > 2 else 1
    grown = ()
    for w in tl.static_range(WORDS):
        word = tl.load(x_at + w)
        for k in tl.static_range(BATCH // WORDS):
            grown += (total[BATCH // WORDS * w + k] + value * part(word, k, kind),)
    return grown
