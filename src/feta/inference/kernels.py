"""Products with sparse matrices, compiled by numba: a chain of layers for one row, or for a tile of up to 16.

One row (matvec) is bound by fetching: 2 bytes of index and 4 of value per non-zero. A tile is held as (d_in, width),
so that a non-zero is one multiply-add of a whole vector. Chains of Linear and ReLU run in one call; between layers
a tile stays as it is. Threads share the rows of one tile, or take tiles of their own where there are enough.

Arguments are addresses, see _chain and feta.inference.calls. Imported only where numba is installed.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from feta.inference.simd import add, bits_set, call, expand, gather_fma, lane, load_float, load_i32, load_i64, load_u16
from feta.inference.simd import multiply_add, relu, store_float, sums_of_four, total, turn_four, vector_functions

# A layer's description: eight numbers of 8 bytes.
FIELDS = ("groups", "starts", "values", "columns", "rows", "bias", "first_column", "flags")
ACCUMULATE, RELU, LAST = 1, 2, 4  # add to what is there (a later block of columns); clip; the layer's last block
TILE = 16
compiled = numba.njit(fastmath={"contract"}, inline="never")  # sums stay in order: no gathers by the vectoriser


def _cached(*signature: Any) -> Callable[[Any], Any]:
    """A C function, kept on disk for the next process where there is a folder to write to."""

    def decorate(function: Any) -> Any:
        try:
            return numba.cfunc(*signature, cache=True, fastmath={"contract"})(function)
        except RuntimeError:
            return numba.cfunc(*signature, fastmath={"contract"})(function)

    return decorate


zero4, load4, _, _ = vector_functions(4)
zero16, load16, _, _ = vector_functions(16)


@compiled
def matvec(layer, x, y, first, end):  # type: ignore[no-untyped-def]
    """y[rows] = W x + bias for the groups first … end - 1."""
    starts, values, columns = load_i64(layer + 8), load_i64(layer + 16), load_i64(layer + 24)
    rows, bias, flags = load_i64(layer + 32), load_i64(layer + 40), load_i64(layer + 56)
    x += 4 * load_i64(layer + 48)
    for group in range(first, end):
        a, b, c, d = zero4(), zero4(), zero4(), zero4()
        for step in range(load_i32(starts + 4 * group), load_i32(starts + 4 * group + 4)):
            v, q = values + 64 * step, columns + 32 * step
            a = gather_fma(x, q, v, a)
            b = gather_fma(x, q + 8, v + 16, b)
            c = gather_fma(x, q + 16, v + 32, c)
            d = gather_fma(x, q + 24, v + 48, d)
        sums = add(sums_of_four(a, b, c, d), load4(bias + 16 * group))
        place = rows + 16 * group
        r0, r1 = y + 4 * load_i32(place), y + 4 * load_i32(place + 4)
        r2, r3 = y + 4 * load_i32(place + 8), y + 4 * load_i32(place + 12)
        s0, s1, s2, s3 = lane(sums, 0), lane(sums, 1), lane(sums, 2), lane(sums, 3)
        if flags & ACCUMULATE:
            s0, s1, s2, s3 = s0 + load_float(r0), s1 + load_float(r1), s2 + load_float(r2), s3 + load_float(r3)
        if flags & RELU:
            zero = np.float32(0)
            s0, s1 = zero if s0 < zero else s0, zero if s1 < zero else s1
            s2, s3 = zero if s2 < zero else s2, zero if s3 < zero else s3
        store_float(r0, s0)
        store_float(r1, s1)
        store_float(r2, s2)
        store_float(r3, s3)


def _tile_product(width: int) -> Any:
    """The same for `width` columns at once: x (d_in, …) and y (d_out, …) with rows x_stride and y_stride bytes apart."""
    zero, load, store, spread = vector_functions(width)

    @compiled
    def product(layer, x, x_stride, y, y_stride, first, end):  # type: ignore[no-untyped-def]
        starts, values, columns = load_i64(layer + 8), load_i64(layer + 16), load_i64(layer + 24)
        rows, bias, flags = load_i64(layer + 32), load_i64(layer + 40), load_i64(layer + 56)
        x += x_stride * load_i64(layer + 48)
        for group in range(first, end):
            shift = bias + 16 * group
            a, b = spread(load_float(shift)), spread(load_float(shift + 4))
            c, d = spread(load_float(shift + 8)), spread(load_float(shift + 12))
            a2, b2, c2, d2 = zero(), zero(), zero(), zero()
            for step in range(load_i32(starts + 4 * group), load_i32(starts + 4 * group + 4)):
                v, q = values + 64 * step, columns + 32 * step
                a = multiply_add(spread(load_float(v)), load(x + x_stride * load_u16(q)), a)
                b = multiply_add(spread(load_float(v + 16)), load(x + x_stride * load_u16(q + 8)), b)
                c = multiply_add(spread(load_float(v + 32)), load(x + x_stride * load_u16(q + 16)), c)
                d = multiply_add(spread(load_float(v + 48)), load(x + x_stride * load_u16(q + 24)), d)
                a2 = multiply_add(spread(load_float(v + 4)), load(x + x_stride * load_u16(q + 2)), a2)
                b2 = multiply_add(spread(load_float(v + 20)), load(x + x_stride * load_u16(q + 10)), b2)
                c2 = multiply_add(spread(load_float(v + 36)), load(x + x_stride * load_u16(q + 18)), c2)
                d2 = multiply_add(spread(load_float(v + 52)), load(x + x_stride * load_u16(q + 26)), d2)
                a = multiply_add(spread(load_float(v + 8)), load(x + x_stride * load_u16(q + 4)), a)
                b = multiply_add(spread(load_float(v + 24)), load(x + x_stride * load_u16(q + 12)), b)
                c = multiply_add(spread(load_float(v + 40)), load(x + x_stride * load_u16(q + 20)), c)
                d = multiply_add(spread(load_float(v + 56)), load(x + x_stride * load_u16(q + 28)), d)
                a2 = multiply_add(spread(load_float(v + 12)), load(x + x_stride * load_u16(q + 6)), a2)
                b2 = multiply_add(spread(load_float(v + 28)), load(x + x_stride * load_u16(q + 14)), b2)
                c2 = multiply_add(spread(load_float(v + 44)), load(x + x_stride * load_u16(q + 22)), c2)
                d2 = multiply_add(spread(load_float(v + 60)), load(x + x_stride * load_u16(q + 30)), d2)
            a, b, c, d = add(a, a2), add(b, b2), add(c, c2), add(d, d2)
            place = rows + 16 * group
            r0, r1 = y + y_stride * load_i32(place), y + y_stride * load_i32(place + 4)
            r2, r3 = y + y_stride * load_i32(place + 8), y + y_stride * load_i32(place + 12)
            if flags & ACCUMULATE:
                a, b, c, d = add(a, load(r0)), add(b, load(r1)), add(c, load(r2)), add(d, load(r3))
            if flags & RELU:
                a, b, c, d = relu(a), relu(b), relu(c), relu(d)
            store(r0, a)
            store(r1, b)
            store(r2, c)
            store(r3, d)

    return product


product4, product8, product16 = _tile_product(4), _tile_product(8), _tile_product(16)


@compiled
def tile_product(width, layer, x, x_stride, y, y_stride, first, end):  # type: ignore[no-untyped-def]
    if width == 16:
        product16(layer, x, x_stride, y, y_stride, first, end)
    elif width == 8:
        product8(layer, x, x_stride, y, y_stride, first, end)
    else:
        product4(layer, x, x_stride, y, y_stride, first, end)


@compiled
def share(layer, member, team):  # type: ignore[no-untyped-def]
    """The first group of one member of a team: each gets about as many steps."""
    starts, low, high = load_i64(layer + 8), np.int64(0), load_i64(layer)
    wanted = load_i32(starts + 4 * high) * member // team
    if member == team:
        return high
    while low < high:
        middle = (low + high) // 2
        if load_i32(starts + 4 * middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def turn(source, source_stride, target, target_stride, rows, columns):  # type: ignore[no-untyped-def]
    """target[j, i] = source[i, j] for i < rows, j < columns; strides in bytes."""
    for i in range(0, rows - 3, 4):
        for j in range(0, columns - 3, 4):
            start, end = source + i * source_stride + 4 * j, target + j * target_stride + 4 * i
            turn_four(start, source_stride, end, target_stride)
    for i in range(rows):
        for j in range(columns // 4 * 4 if i < rows // 4 * 4 else 0, columns):
            store_float(target + j * target_stride + 4 * i, load_float(source + i * source_stride + 4 * j))


@compiled
def run_tile(args, x, y, count, scratch, member, team):  # type: ignore[no-untyped-def]
    """A chain on `count` <= 16 rows of x (count, d_in), its work shared by a team whose members wait for each other."""
    table, layers, d_in, d_out = load_i64(args), load_i64(args + 8), load_i64(args + 40), load_i64(args + 48)
    half, last, barrier = load_i64(args + 64), load_i64(args + 72), load_i64(args + 80)
    width = 1 if count == 1 else 4 if count <= 4 else 8 if count <= 8 else 16
    stride, now, then = 4 * width, scratch, scratch + half
    if width == 1:
        now, then = x, scratch
    else:
        a, b = d_in * member // team, d_in * (member + 1) // team
        turn(x + 4 * a, 4 * d_in, now + stride * a, stride, count, b - a)
        for i in range(a, b):
            for j in range(count, width):  # lanes without a row: what is there could be slow, or raise
                store_float(now + stride * i + 4 * j, np.float32(0))
        if team > 1:
            call(barrier)
    for index in range(layers):
        layer = table + 64 * index
        if width == 1 and index == last:
            then = y
        first, end = share(layer, member, team), share(layer, member + 1, team)
        if width == 1:
            matvec(layer, now, then, first, end)
        else:
            tile_product(width, layer, now, stride, then, stride, first, end)
        if team > 1:
            call(barrier)
        if load_i64(layer + 56) & LAST and index < layers - 1:
            now, then = then, (scratch + half if then == scratch else scratch)
    if width > 1:
        a, b = d_out * member // team, d_out * (member + 1) // team
        turn(then + stride * a, stride, y + 4 * a, 4 * d_out, b - a, count)


@_cached(types.void(types.int64))
def chain(args):  # type: ignore[no-untyped-def]
    """What one thread does of a chain on x (batch, d_in); ARGUMENTS names the numbers at `args`."""
    x, y, batch = load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    d_in, d_out, scratch, half = (
        load_i64(args + 40),
        load_i64(args + 48),
        load_i64(args + 56),
        load_i64(args + 64),
    )
    team = load_i64(args + 96)
    member = call(load_i64(args + 88)) if team > 1 else 0
    tiles = (batch + TILE - 1) // TILE
    if tiles >= team:
        scratch += 2 * half * member
        for tile in range(tiles * member // team, tiles * (member + 1) // team):
            count = min(TILE, batch - TILE * tile)
            run_tile(args, x + 4 * TILE * tile * d_in, y + 4 * TILE * tile * d_out, count, scratch, 0, 1)
    else:
        for tile in range(tiles):
            count = min(TILE, batch - TILE * tile)
            run_tile(args, x + 4 * TILE * tile * d_in, y + 4 * TILE * tile * d_out, count, scratch, member, team)
            call(load_i64(args + 80))  # the scratch is used again


@_cached(types.void(types.int64))
def columns(args):  # type: ignore[no-untyped-def]
    """What one thread does of one layer on x (batch, d_in, positions): convolutions; positions are at least 4."""
    table, blocks = load_i64(args), load_i64(args + 8)
    x, y, batch = load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    d_in, d_out, positions = load_i64(args + 40), load_i64(args + 48), load_i64(args + 56)
    team = load_i64(args + 96)
    member = call(load_i64(args + 88)) if team > 1 else 0
    width, stride = 16 if positions >= 16 else 8 if positions >= 8 else 4, 4 * positions
    tiles = (positions + width - 1) // width
    for work in range(batch * tiles * member // team, batch * tiles * (member + 1) // team):
        sample = work // tiles
        # The last tile begins earlier, so that it is whole: some columns are computed twice, with the same result.
        start = 4 * min(width * (work % tiles), positions - width)
        here, there = x + sample * d_in * stride + start, y + sample * d_out * stride + start
        for index in range(blocks):
            layer = table + 64 * index
            tile_product(width, layer, here, stride, there, stride, 0, load_i64(layer))


@compiled
def bitmap_rows(args, x, y, first, end):  # type: ignore[no-untyped-def]
    """One row of x (d_in filled up to words of 16) times the matrix; words of four at a time, with four sums."""
    masks, starts, values = load_i64(args), load_i64(args + 8), load_i64(args + 72)
    bias, words = load_i64(args + 64), load_i64(args + 56)
    for row in range(first, end):
        v, m = values + 4 * load_i64(starts + 8 * row), masks + 2 * words * row
        a, b, c, d = zero16(), zero16(), zero16(), zero16()
        word = 0
        while word + 4 <= words:
            m0, m1 = load_u16(m + 2 * word), load_u16(m + 2 * word + 2)
            m2, m3 = load_u16(m + 2 * word + 4), load_u16(m + 2 * word + 6)
            v1 = v + 4 * bits_set(m0)
            v2 = v1 + 4 * bits_set(m1)
            v3 = v2 + 4 * bits_set(m2)
            at = x + 64 * word
            a = multiply_add(expand(v, m0), load16(at), a)
            b = multiply_add(expand(v1, m1), load16(at + 64), b)
            c = multiply_add(expand(v2, m2), load16(at + 128), c)
            d = multiply_add(expand(v3, m3), load16(at + 192), d)
            v = v3 + 4 * bits_set(m3)
            word += 4
        while word < words:
            mask = load_u16(m + 2 * word)
            a = multiply_add(expand(v, mask), load16(x + 64 * word), a)
            v += 4 * bits_set(mask)
            word += 1
        store_float(y + 4 * row, total(add(add(a, b), add(c, d))) + load_float(bias + 4 * row))


@_cached(types.void(types.int64))
def bitmap(args):  # type: ignore[no-untyped-def]
    """What one thread does of one layer in bitmap form on x (batch, 16 words)."""
    x, y, batch = load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    d_out, words, team = load_i64(args + 48), load_i64(args + 56), load_i64(args + 96)
    member = call(load_i64(args + 88)) if team > 1 else 0
    for row in range(batch):
        first, end = d_out * member // team, d_out * (member + 1) // team
        bitmap_rows(args, x + 64 * words * row, y + 4 * d_out * row, first, end)
