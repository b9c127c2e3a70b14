"""Products with sparse matrices, compiled by numba: one row at a time, or a tile of up to 16.

One row (matvec) is bound by fetching: 2 bytes of index and 4 of value per non-zero. A tile is held as (d_in, width),
so that a non-zero is one multiply-add of a whole vector. `layer` is the address of eight numbers:

    groups, starts, values, columns, rows, bias    see feta.inference.packing
    first_column, flags                            where the block begins; ACCUMULATE, RELU, LAST

Imported only where numba is installed.
"""

from typing import Any

import numba
import numpy as np

from feta.inference import simd
from feta.inference.grouped import ACCUMULATE, RELU
from feta.inference.simd import add, load_float, load_i32, load_i64, load_u16, multiply_add, store_float

compiled = numba.njit(fastmath={"contract"})  # sums stay in order: the vectoriser's gathers are slower
load4 = simd.vector_functions(4)[1]
zero16 = simd.vector_functions(16)[0]


@compiled
def matvec(layer, x, y, first, end):
    """y[rows] = W x + bias for the groups first … end - 1."""
    starts, values, columns = load_i64(layer + 8), load_i64(layer + 16), load_i64(layer + 24)
    rows, bias, flags = load_i64(layer + 32), load_i64(layer + 40), load_i64(layer + 56)
    x += 4 * load_i64(layer + 48)
    for group in range(first, end):
        parts = zero16()
        for step in range(load_i32(starts + 4 * group), load_i32(starts + 4 * group + 4)):
            parts = simd.gather_fma(x, columns + 32 * step, values + 64 * step, parts)
        sums = add(simd.sums_of_four(parts), load4(bias + 16 * group))
        place = rows + 16 * group
        r0, r1 = y + 4 * load_i32(place), y + 4 * load_i32(place + 4)
        r2, r3 = y + 4 * load_i32(place + 8), y + 4 * load_i32(place + 12)
        s0, s1, s2, s3 = simd.lane(sums, 0), simd.lane(sums, 1), simd.lane(sums, 2), simd.lane(sums, 3)
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


def _tile_product(width: int, table: bool = False) -> Any:
    """The same for `width` columns at once; rows of y are y_stride bytes apart.

    Rows of x are x_stride bytes apart or, with a table, x_stride is the address of int32 distances in bytes.
    """
    zero, load, store, spread = simd.vector_functions(width)

    if table:

        @compiled
        def meet(value, x, x_stride, column, sums):
            row = load(x + load_i32(x_stride + 4 * load_u16(column)))
            return multiply_add(spread(load_float(value)), row, sums)

    else:

        @compiled
        def meet(value, x, x_stride, column, sums):
            return multiply_add(spread(load_float(value)), load(x + x_stride * load_u16(column)), sums)

    @compiled
    def product(layer, x, x_stride, y, y_stride, first, end):
        starts, values, columns = load_i64(layer + 8), load_i64(layer + 16), load_i64(layer + 24)
        rows, bias, flags = load_i64(layer + 32), load_i64(layer + 40), load_i64(layer + 56)
        if table:
            x_stride += 4 * load_i64(layer + 48)
        else:
            x += x_stride * load_i64(layer + 48)
        for group in range(first, end):
            shift = bias + 16 * group
            a, b = spread(load_float(shift)), spread(load_float(shift + 4))
            c, d = spread(load_float(shift + 8)), spread(load_float(shift + 12))
            a2, b2, c2, d2 = zero(), zero(), zero(), zero()
            for step in range(load_i32(starts + 4 * group), load_i32(starts + 4 * group + 4)):
                v, q = values + 64 * step, columns + 32 * step
                a, a2 = meet(v, x, x_stride, q, a), meet(v + 4, x, x_stride, q + 2, a2)
                b, b2 = meet(v + 16, x, x_stride, q + 8, b), meet(v + 20, x, x_stride, q + 10, b2)
                c, c2 = meet(v + 32, x, x_stride, q + 16, c), meet(v + 36, x, x_stride, q + 18, c2)
                d, d2 = meet(v + 48, x, x_stride, q + 24, d), meet(v + 52, x, x_stride, q + 26, d2)
                a, a2 = meet(v + 8, x, x_stride, q + 4, a), meet(v + 12, x, x_stride, q + 6, a2)
                b, b2 = meet(v + 24, x, x_stride, q + 12, b), meet(v + 28, x, x_stride, q + 14, b2)
                c, c2 = meet(v + 40, x, x_stride, q + 20, c), meet(v + 44, x, x_stride, q + 22, c2)
                d, d2 = meet(v + 56, x, x_stride, q + 28, d), meet(v + 60, x, x_stride, q + 30, d2)
            a, b, c, d = add(a, a2), add(b, b2), add(c, c2), add(d, d2)
            place = rows + 16 * group
            r0, r1 = y + y_stride * load_i32(place), y + y_stride * load_i32(place + 4)
            r2, r3 = y + y_stride * load_i32(place + 8), y + y_stride * load_i32(place + 12)
            if flags & ACCUMULATE:
                a, b, c, d = add(a, load(r0)), add(b, load(r1)), add(c, load(r2)), add(d, load(r3))
            if flags & RELU:
                a, b, c, d = simd.relu(a), simd.relu(b), simd.relu(c), simd.relu(d)
            store(r0, a)
            store(r1, b)
            store(r2, c)
            store(r3, d)

    return product


product4, product8, product16 = _tile_product(4), _tile_product(8), _tile_product(16)
table4, table16 = _tile_product(4, table=True), _tile_product(16, table=True)


@compiled
def tile_product(width, layer, x, x_stride, y, y_stride, first, end):
    if width == 16:
        product16(layer, x, x_stride, y, y_stride, first, end)
    elif width == 8:
        product8(layer, x, x_stride, y, y_stride, first, end)
    else:
        product4(layer, x, x_stride, y, y_stride, first, end)


@compiled
def share(layer, member, team):
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
def turn(source, source_stride, target, target_stride, rows, columns):
    """target[j, i] = source[i, j] for i < rows, j < columns; strides in bytes."""
    for i in range(0, rows - 3, 4):
        for j in range(0, columns - 3, 4):
            start, end = source + i * source_stride + 4 * j, target + j * target_stride + 4 * i
            simd.turn_four(start, source_stride, end, target_stride)
    for i in range(rows):
        for j in range(columns // 4 * 4 if i < rows // 4 * 4 else 0, columns):
            store_float(target + j * target_stride + 4 * i, load_float(source + i * source_stride + 4 * j))
