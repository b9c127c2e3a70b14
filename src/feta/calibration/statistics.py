"""One-pass statistics of a stream, accumulated chunk by chunk in float64.

    H = sum a~ a~'      with a~ = (a, 1): the Gram matrix, its last row and column those of the bias
    C = sum a~ t(b)'    cross terms with the targets

Products are formed in the stream's own dtype and added up in float64, so that a sum over millions of
rows loses no more than one chunk's product does, and results do not depend on how rows are chunked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.errors import DataError
from feta.problem import ActivationStream

Targets = Callable[[Tensor, Tensor], Tensor]  # (A, B) -> T, the targets of a least-squares problem


@dataclass(frozen=True)
class Gram:
    """Sums over all rows, not means: divide by `rows` for an average."""

    H: Tensor  # (d_in [+ 1], d_in [+ 1]) float64
    rows: int
    with_bias: bool

    @property
    def d_in(self) -> int:
        return len(self.H) - int(self.with_bias)


def gram(stream: ActivationStream, *, with_bias: bool = True) -> Gram:
    """H over one pass.

    Inputs are shifted by the first chunk's mean before they are multiplied, and the shift is undone in
    float64: an input that hardly varies around a large mean would lose its variance in float32 products.
    """
    centred: Tensor | None = None
    shift = sums = torch.empty(0)
    rows = 0
    for A in stream.inputs():
        if centred is None:
            shift = A.mean(0, dtype=torch.float64).to(A.dtype)
            centred = torch.zeros(A.shape[1], A.shape[1], dtype=torch.float64, device=A.device)
            sums = torch.zeros(A.shape[1], dtype=torch.float64, device=A.device)
        A = A - shift
        centred += A.t() @ A
        sums += A.sum(0, dtype=torch.float64)
        rows += len(A)
    return Gram(_shifted_back(complete(centred), sums, shift.double(), rows, with_bias), rows, with_bias)


def _shifted_back(H: Tensor, sums: Tensor, shift: Tensor, rows: int, with_bias: bool) -> Tensor:
    """sum (a + s)(a + s)' from sum a a' and sum a; with the row and column of the bias."""
    mixed = torch.outer(shift, sums)
    H = H + mixed + mixed.t() + rows * torch.outer(shift, shift)
    if not with_bias:
        return H
    whole = H.new_full((len(H) + 1, len(H) + 1), rows)
    whole[:-1, :-1] = H
    whole[-1, :-1] = whole[:-1, -1] = sums + rows * shift
    return whole


def cross(stream: ActivationStream, targets: Targets, *, with_bias: bool = True) -> Tensor:
    """C (d_in [+ 1], d_out) over one pass, for any targets of the rows."""
    C: Tensor | None = None
    for A, B in stream.chunks():
        T = targets(A, B)
        if C is None:
            C = torch.zeros(A.shape[1] + int(with_bias), T.shape[1], dtype=torch.float64, device=A.device)
        C[: A.shape[1]] += A.t() @ T
        if with_bias:
            C[-1] += T.sum(0, dtype=torch.float64)
    return complete(C)


def column_norms(stream: ActivationStream) -> Tensor:
    """The Euclidean norm of each input over all rows (d_in,), float64."""
    total: Tensor | None = None
    for A in stream.inputs():
        squares = A.square().sum(0, dtype=torch.float64)
        total = squares if total is None else total + squares
    return complete(total).sqrt()


def complete(total: Tensor | None) -> Tensor:
    """A finished sum: a NaN or an overflow in any row has reached it, so one look at the end is enough."""
    if total is None:
        raise DataError("calibration data must hold at least one row, got none")
    if not bool(torch.isfinite(total).all()):
        raise DataError(
            "a layer's inputs must be finite, got NaN, infinite or overflowing values in the data"
        )
    return total
