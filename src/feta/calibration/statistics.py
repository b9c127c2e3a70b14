"""One-pass statistics of a stream, accumulated chunk by chunk in float64.

    H = sum a~ a~'      with a~ = (a, 1): the Gram matrix, its last row and column those of the bias
    C = sum a~ t(b)'    cross terms with the targets

Products are formed in the stream's own dtype and added up in float64: a sum over millions of rows loses no more
than one chunk's product does, and does not depend on the chunks. Where processes share the rows, sums are over all
of them, in every process.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feta.errors import DataError
from feta.problem import ActivationStream
from feta.ranks import ALONE, Ranks

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
    H: Tensor | None = None
    shift = sums = torch.empty(0)
    rows = d_in = 0
    for A in stream.inputs():
        if H is None:
            d_in = A.shape[1]
            shift = A.mean(0, dtype=torch.float64).to(A.dtype)
            H = A.new_zeros(d_in + 1, d_in + 1, dtype=torch.float64)
            sums = A.new_zeros(d_in, dtype=torch.float64)
        A = A - shift
        scale = _power_of_two(A)
        sums += A.sum(0, dtype=torch.float64)
        A = A if scale == 1 else A * scale
        for start in range(0, d_in, BLOCK):  # on and above the diagonal of blocks
            stop = min(start + BLOCK, d_in)
            product = A[:, start:stop].t() @ A[:, start:]
            H[start:stop, start:d_in] += product if scale == 1 else product.double() / scale / scale
        rows += len(A)
    if H is not None:
        for start in range(0, d_in, BLOCK):  # the other half, below the diagonal of blocks
            stop = start + BLOCK
            H[stop:d_in, start:stop] = H[start:stop, stop:d_in].t()
        centred = H[:d_in, :d_in]
        back = shift.double()
        # sum (a + s)(a + s)' from sum a a' and sum a, in place: H is the largest thing a method holds.
        centred.addr_(back, sums).addr_(sums, back).addr_(back, back, alpha=rows)
        H[-1, :-1] = H[:-1, -1] = sums + rows * back
        H[-1, -1] = rows
    whole = complete(ranks_of(stream).total(H))
    return Gram(whole, round(float(whole[-1, -1])), True)


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


def add_cross(C: Tensor, A: Tensor, T: Tensor) -> None:
    """C += A~'T; a last row of C beyond A's columns is that of the bias."""
    for start in range(0, A.shape[1], BLOCK):
        stop = min(start + BLOCK, A.shape[1])
        C[start:stop] += A[:, start:stop].t() @ T
    if len(C) > A.shape[1]:
        C[-1] += T.sum(0, dtype=torch.float64)


def cross(stream: ActivationStream, targets: Callable[[Tensor, Tensor], Tensor], *, with_bias: bool = True) -> Tensor:
    """C (d_in [+ 1], d_out) over one pass, for any targets T(A, B) of the rows."""
    C: Tensor | None = None
    for A, B in stream.chunks():
        T = targets(A, B)
        if C is None:
            C = A.new_zeros(A.shape[1] + int(with_bias), T.shape[1], dtype=torch.float64)
        add_cross(C, A, T)
    return complete(ranks_of(stream).total(C))


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
        raise DataError("calibration data must hold at least one row, got none")
    if not bool(torch.isfinite(total.sum())):  # a mask of all entries would take more memory than the sum
        raise DataError("a layer's inputs must be finite, got NaN, infinite or overflowing values in the data")
    return total
