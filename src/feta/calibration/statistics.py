"""One-pass statistics of a stream, accumulated chunk by chunk in float64.

    H = sum a~ a~'      with a~ = (a, 1): the Gram matrix, its last row and column those of the bias
    C = sum a~ t(b)'    cross terms with the targets

Products are formed in the stream's own dtype and added up in float64: a sum over millions of rows loses no more
than one chunk's product does. Where processes share the rows, sums are over all of them, in every process, and the
same to the last bit however many there are (calibration.sums).
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feta.calibration.sums import ProductSum, sizes
from feta.errors import DataError
from feta.problem import ActivationStream
from feta.ranks import ALONE, Ranks

NO_ROWS = "calibration data must hold at least one row, got none"
BLOCK = 512  # rows of H at a time: half the work of the whole product, and no second matrix of d_in^2


@dataclass(frozen=True)
class Gram:
    """Sums over all rows, not means: divide by `rows` for an average."""

    H: Tensor  # (d_in [+ 1], d_in [+ 1]) float64
    rows: int
    with_bias: bool


def gram(stream: ActivationStream, *, with_bias: bool = True) -> Gram:
    """H over one pass, or the one that another layer with the same inputs has had: it must not be changed."""
    shared: dict[Any, Any] = getattr(stream, "shared", {})
    if "gram" not in shared:
        shared["gram"] = _gram(stream)
    whole: Gram = shared["gram"]
    return whole if with_bias else Gram(whole.H[:-1, :-1], whole.rows, with_bias)


def _gram(stream: ActivationStream) -> Gram:
    """H with the bias's row.

    Inputs are shifted by the first chunk's mean before they are multiplied, and the shift is undone in
    float64: an input that hardly varies around a large mean would lose its variance in float32 products.
    They are scaled by a power of two as well: squares of very small ones would be lost to float32.
    """
    ranks, (first, chunks) = ranks_of(stream), peeked(stream.inputs())
    start = ranks.earliest(number_of(stream), None if first is None else _first_look(first))
    if start is None:
        raise DataError(NO_ROWS)
    shift, size = start.to(ranks.device if first is None else first.device)
    d_in, rows = len(shift), 0
    # The bias's input is one in every row: the other inputs' sums are products with it.
    edge = torch.cat([size, size.new_ones(1)])
    H = ProductSum(edge, edge, exact=first is None or first.dtype is not torch.float64)
    for A in chunks:
        A = A - shift.to(A.dtype)
        scale = _power_of_two(A)
        H.add(A.sum(0, dtype=torch.float64).to(A.dtype), d_in, slice(0, d_in))
        A = A if scale == 1 else A * scale
        for begin in range(0, d_in, BLOCK):  # on and above the diagonal of blocks
            part = slice(begin, min(begin + BLOCK, d_in))
            product = A[:, part].t() @ A[:, begin:]
            H.add(product if scale == 1 else product.double() / scale / scale, part, slice(begin, d_in))
        rows += len(A)
    return _completed(H.over(ranks), shift, round(ranks.sum([rows])[0]))


def _first_look(A: Tensor) -> Tensor:
    """The shift of the inputs, and their sizes when shifted (2, d_in), by the first chunk."""
    shift = A.mean(0, dtype=torch.float64).to(A.dtype)
    return torch.stack([shift.double(), sizes(A - shift)]).cpu()


def _completed(H: Tensor, shift: Tensor, rows: int) -> Gram:
    """The Gram matrix of the inputs as they are, from its upper half for shifted ones and their sums, a last row."""
    d_in = len(shift)
    for begin in range(0, d_in, BLOCK):  # the other half, below the diagonal of blocks
        stop = begin + BLOCK
        H[stop:d_in, begin:stop] = H[begin:stop, stop:d_in].t()
    sums = H[-1, :-1].clone()
    # sum (a + s)(a + s)' from sum a a' and sum a, in place: H is the largest thing a method holds.
    H[:d_in, :d_in].addr_(shift, sums).addr_(sums, shift).addr_(shift, shift, alpha=rows)
    H[-1, :-1] = H[:-1, -1] = sums + rows * shift
    H[-1, -1] = rows
    return Gram(complete(H), rows, True)


def peeked(chunks: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """The first of some chunks, or None, and all of them."""
    first = next(chunks, None)
    return first, chunks if first is None else itertools.chain([first], chunks)


def number_of(stream: ActivationStream | None) -> int:
    """The number of the call that the first rows of a stream came from, once it has begun."""
    return int(getattr(stream, "shared", {}).get("first", 0))


def ranks_of(stream: ActivationStream) -> Ranks:
    """The processes that have the other rows of a stream."""
    found: Ranks = getattr(stream, "ranks", ALONE)
    return found


def _power_of_two(A: Tensor) -> float:
    """What brings the largest of some inputs near one, where their squares would leave float32's range."""
    largest = float(A.abs().max())
    if not math.isfinite(largest) or largest == 0 or 1e-8 < largest < 1e15:
        return 1.0
    return 2.0 ** min(-math.frexp(largest)[1], 126)  # beyond it float32 has no number


def cross(stream: ActivationStream, targets: Callable[[Tensor, Tensor], Tensor], *, with_bias: bool = True) -> Tensor:
    """C (d_in [+ 1], d_out) over one pass, for any targets T(A, B) of the rows."""
    pairs = ((A, targets(A, B)) for A, B in stream.chunks())
    return products(pairs, ranks_of(stream), stream, with_bias=with_bias)


def products(
    pairs: Iterator[tuple[Tensor, Tensor]], ranks: Ranks, stream: ActivationStream | None = None, *, with_bias: bool
) -> Tensor:
    """The sum of A~'T over chunks (A, T) of all processes; its last row is that of the bias.

    stream: what the chunks are made of; None: something that all processes have.
    """
    first, pairs = peeked(pairs)
    start = ranks.earliest(number_of(stream), None if first is None else tuple(sizes(part).cpu() for part in first))
    if start is None:
        raise DataError(NO_ROWS)
    where = ranks.device if first is None else first[0].device
    rows, columns = (part.to(where) for part in start)
    d_in = len(rows)
    if with_bias:
        rows = torch.cat([rows, rows.new_ones(1)])
    C = ProductSum(rows, columns, exact=first is None or first[0].dtype is not torch.float64)
    for A, T in pairs:
        for begin in range(0, d_in, BLOCK):
            part = slice(begin, min(begin + BLOCK, d_in))
            C.add(A[:, part].t() @ T, part)
        if with_bias:
            C.add(T.sum(0, dtype=torch.float64).to(T.dtype), d_in)
    return complete(C.over(ranks))


def column_norms(stream: ActivationStream) -> Tensor:
    """The Euclidean norm of each input over all rows (d_in,), float64."""
    total: Tensor | None = None
    for A in stream.inputs():
        scale = _power_of_two(A)
        squares = (A * scale).square().sum(0, dtype=torch.float64) / scale**2
        total = squares if total is None else total + squares
    return complete(ranks_of(stream).total(total)).sqrt()


def complete(total: Tensor | None) -> Tensor:
    """A finished sum: a NaN or an overflow in any row has reached it, so one look at the end is enough."""
    if total is None:
        raise DataError(NO_ROWS)
    if not bool(torch.isfinite(total.sum())):  # a mask of all entries would take more memory than the sum
        raise DataError("a layer's inputs must be finite, got NaN, infinite or overflowing values in the data")
    return total
