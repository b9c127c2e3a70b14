"""The kernels that layers call: what one thread does of a chain of layers, of a convolution, of a bitmap layer.

Each is a C function of the address of thirteen numbers; the last three are for threads, see feta.inference.calls.
Threads share the rows of one tile, or take tiles of their own where there are enough. Imported only where numba is
installed. numba keeps what it compiled beside this file and looks at this file's date alone: touch it when
feta.inference.simd or products change.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from feta.inference.grouped import LAST
from feta.inference.products import compiled, matvec, share, table4, table16, tile_product, turn
from feta.inference.simd import (
    add,
    bits_set,
    call,
    expand,
    load_float,
    load_i64,
    load_u16,
    multiply_add,
    store_float,
    total,
    vector_functions,
)

TILE = 16
zero16, load16, _, _ = vector_functions(16)


def _cached(*signature: Any) -> Callable[[Any], Any]:
    """A C function, kept on disk for the next process where there is a folder to write to."""

    def decorate(function: Any) -> Any:
        try:
            return numba.cfunc(*signature, cache=True, fastmath={"contract"})(function)
        except RuntimeError:
            return numba.cfunc(*signature, fastmath={"contract"})(function)

    return decorate


@compiled
def place(args):
    """The number of the calling thread in its team, and the team's size, which may be less than was asked for."""
    if load_i64(args + 88) == 0:
        return 0, 1
    return call(load_i64(args + 88)), call(load_i64(args + 96))


@compiled
def run_tile(args, x, y, count, scratch, member, team):
    """A chain on `count` <= 16 rows of x (count, d_in), shared by a team whose members wait for each other."""
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
def chain(args):
    """What one thread does of a chain on x (batch, d_in); see feta.inference.chain for the numbers."""
    x, y, batch = load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    d_in, d_out, scratch, half = load_i64(args + 40), load_i64(args + 48), load_i64(args + 56), load_i64(args + 64)
    member, team = place(args)
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
            call(load_i64(args + 80))  # before the scratch is used again


@_cached(types.void(types.int64))
def columns(args):
    """What one thread does of a convolution: y (batch, d_out, positions) from samples that are `sample` bytes apart.

    A weight meets x at a distance of its own, found in a table, and from there at neighbouring positions.
    """
    layer = load_i64(args)
    x, y, batch = load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    sample, d_out = load_i64(args + 40), load_i64(args + 48)
    positions, table = load_i64(args + 56), load_i64(args + 64)
    member, team = place(args)
    width, stride = 16 if positions >= 16 else 4, 4 * positions
    tiles = (positions + width - 1) // width
    for work in range(batch * tiles * member // team, batch * tiles * (member + 1) // team):
        # The last tile begins earlier, so that it is whole: some columns are computed twice, with the same result.
        start = 4 * min(width * (work % tiles), positions - width)
        here, there = x + work // tiles * sample + start, y + work // tiles * d_out * stride + start
        if width == 16:
            table16(layer, here, table, there, stride, 0, load_i64(layer))
        else:
            table4(layer, here, table, there, stride, 0, load_i64(layer))


@compiled
def bitmap_rows(args, x, y, first, end):
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
def bitmap(args):
    """What one thread does of one layer in bitmap form on x (batch, 16 words)."""
    x, y, batch = load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    d_out, words = load_i64(args + 48), load_i64(args + 56)
    member, team = place(args)
    for row in range(batch):
        first, end = d_out * member // team, d_out * (member + 1) // team
        bitmap_rows(args, x + 64 * words * row, y + 4 * d_out * row, first, end)
