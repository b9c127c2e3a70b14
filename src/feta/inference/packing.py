"""How a sparse matrix is laid out for the kernels: groups of four rows, and a bitmap.

Groups. Rows are sorted by their number of non-zeros and taken four at a time. A step of a group holds four non-zeros
of each of its rows, so that a kernel has four independent sums and no remainders:

    values    float32 (steps, 4 rows, 4)       columns   16 bits, likewise
    starts    int32 (groups + 1): the steps where groups begin
    rows      int32 (groups, 4): where each sum goes;  bias  float32 (groups, 4)

Rows are filled up with zeros that meet a column the row has anyway. A group that lacks rows has copies of its last
row's place in front, empty: the last is written last. A matrix with more than 65,536 columns is cut into blocks.

Bitmap. One bit per entry, rows filled up to words of 16 bits, and the values of the set bits in their order.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16
ROWS, DEPTH = 4, 4

Arrays = dict[str, NDArray[np.generic]]


def pack_groups(matrix: NDArray[np.float32], bias: NDArray[np.float32] | None) -> Arrays:
    """One block of at most 65,536 columns, (d_out, d_in)."""
    found, column = np.nonzero(matrix)
    counts = np.bincount(found, minlength=len(matrix))
    order = np.argsort(counts, kind="stable")
    order = np.concatenate([np.repeat(order[ROWS - 1 - (-len(order) % ROWS)], -len(order) % ROWS), order])
    copies = len(order) - len(matrix)
    lengths = np.concatenate([np.zeros(copies, np.int64), counts[order[copies:]]])
    steps = -(-lengths.reshape(-1, ROWS).max(1) // DEPTH)
    starts = np.concatenate([[0], np.cumsum(steps)])
    # Where each non-zero goes: its row's place, then how far along its row it is.
    place = np.empty(len(matrix), np.int64)
    place[order[copies:]] = np.arange(copies, len(order))
    along = np.arange(len(found)) - np.concatenate([[0], np.cumsum(counts)])[found]
    step = starts[place[found] // ROWS] + along // DEPTH
    target = (step, place[found] % ROWS, along % DEPTH)
    values = np.zeros((int(starts[-1]), ROWS, DEPTH), np.float32)
    values[target] = matrix[found, column]
    columns = np.zeros(values.shape, np.uint16)
    last = np.zeros(len(matrix), np.uint16)
    last[found] = column  # of each row the last one, as non-zeros come in order
    group = np.repeat(np.arange(len(steps)), steps)
    columns[:] = last[order].reshape(-1, ROWS)[group][:, :, None]
    columns[target] = column
    shifts = np.zeros(len(matrix), np.float32) if bias is None else bias
    return {
        "values": values,
        "columns": columns.view(np.int16),  # torch can do little with unsigned ones
        "starts": starts.astype(np.int32),
        "rows": order.reshape(-1, ROWS).astype(np.int32),
        "bias": shifts[order].reshape(-1, ROWS),
    }


def pack_bitmap(matrix: NDArray[np.float32]) -> Arrays:
    """A whole matrix (d_out, d_in)."""
    bits = np.zeros((len(matrix), -(-matrix.shape[1] // 16) * 16), bool)
    bits[:, : matrix.shape[1]] = matrix != 0
    counts = bits.sum(1)
    return {
        "values": matrix[matrix != 0],
        "masks": np.packbits(bits, axis=1, bitorder="little").view(np.int16),
        "starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    }
