"""Exact least-squares refits of many columns, each on a support of its own.

    V_j = argmin  v' H v - 2 C_j' v + r ||v - W_j||^2    over v with supp(v) in S_j
        : (H + r I)_SS v_S = (C_j + r W_j)_S

H (d, d) is a Gram matrix, C (d, d_out) its cross terms, mask (d, d_out) holds the supports, and r is the
ridge times the mean of H's diagonal. Rows of H beyond those of the mask, the bias, are in every support.

Columns of about the same support size are gathered, padded with the identity and factored together.
H is scaled to a unit diagonal first: one tolerance for pivots then fits every input, and float32 lasts
longer. On 2 CPU cores gathering H_SS costs as much as factoring it and LAPACK called column by column
is no faster, provided that a batch stays in the cache; hence the small default budget there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.errors import ConfigError, ModelError
from feta.problem import Status

LADDER = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the unit diagonal


@dataclass(frozen=True)
class Refit:
    """The refitted columns, and what it took to get them."""

    V: Tensor  # (d, d_out), zero outside the supports
    status: Status = Status.OK
    damping: float = 0.0  # the most that the ladder added, relative to the diagonal
    damped_columns: int = 0  # how many needed the ladder
    retried_columns: int = 0  # how many float32 could not do
    inverse_diagonal: Tensor | None = None  # (d, d_out): [(H + r I)_SS^-1]_ii on the supports, else 0


def masked_refit(
    H: Tensor,
    C: Tensor,
    mask: Tensor,
    *,
    ridge: float = 0.0,
    toward: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    budget: int | None = None,
    with_inverse_diagonal: bool = False,
) -> Refit:
    """The least-squares optimum of every column on its support.

    ridge: relative to the mean of H's diagonal; pulls to `toward` (d, d_out), or to zero.
    dtype: what is factored; columns that float32 cannot factor are done again in float64.
    budget: bytes of one batch of systems; by default 16 MiB on a CPU, 1 GiB elsewhere.
    with_inverse_diagonal: also what a swap search needs, at about twice the time.
    """
    _check(H, C, mask, toward)
    systems = _Systems.of(H, C, mask, ridge, toward)
    size = budget or (2**24 if H.device.type == "cpu" else 2**30)
    columns = torch.arange(C.shape[1], device=H.device)
    failed = systems.solve_(columns, 0.0, dtype, size, with_inverse_diagonal)
    retried = len(failed) if dtype != torch.float64 else 0
    if retried:
        failed = systems.solve_(failed, 0.0, torch.float64, size, with_inverse_diagonal)
    damped, damping = len(failed), 0.0
    for step in LADDER:
        if len(failed) == 0:
            break
        damping = step
        failed = systems.solve_(failed, step, torch.float64, size, with_inverse_diagonal)
    if len(failed):
        raise ModelError(
            f"masked_refit must find a Cholesky factor for every column, got {len(failed)} without one "
            f"even at damping {damping:g} of the diagonal"
        )
    V, inverse = systems.unscaled()
    status = Status.DAMPED if damped or retried else Status.OK
    return Refit(V, status, damping, damped, retried, inverse if with_inverse_diagonal else None)


def _check(H: Tensor, C: Tensor, mask: Tensor, toward: Tensor | None) -> None:
    d = len(H)
    if H.shape != (d, d) or len(C) != d or mask.shape[1:] != C.shape[1:] or len(mask) > d:
        shapes = f"H {tuple(H.shape)}, C {tuple(C.shape)}, mask {tuple(mask.shape)}"
        raise ConfigError(f"masked_refit must have H (d, d), C (d, d_out), mask (<= d, d_out), got {shapes}")
    if toward is not None and toward.shape != C.shape:
        raise ConfigError(
            f"masked_refit.toward must have C's shape {tuple(C.shape)}, got {tuple(toward.shape)}"
        )


@dataclass(frozen=True)
class _Systems:
    """All columns' systems in scaled variables x = v / scale, and room for their solutions.

    One row and column of zeros at the end of H: padded entries of a batch point there.
    """

    H: Tensor  # (d + 1, d + 1) unit diagonal, the ridge in it
    C: Tensor  # (d + 1, d_out)
    toward: Tensor | None  # (d + 1, d_out)
    support: Tensor  # (d_out, d) bool
    scale: Tensor  # (d,)
    X: Tensor  # (d + 1, d_out), filled by solve_
    inverse: Tensor  # (d + 1, d_out), filled by solve_

    @classmethod
    def of(cls, H: Tensor, C: Tensor, mask: Tensor, ridge: float, toward: Tensor | None) -> _Systems:
        d, d_out = C.shape
        H, C = H.double(), C.double()
        added = ridge * float(H.diagonal().mean())
        diagonal = H.diagonal() + added
        # An input that is always zero has an empty equation: it keeps `toward`, or becomes zero.
        dead = diagonal <= 0
        scale = diagonal.where(~dead, 1).rsqrt()
        padded = H.new_zeros(d + 1, d + 1)
        torch.mul(H * scale, scale[:, None], out=padded[:d, :d])
        padded.diagonal()[:d] = 1
        rest = C.new_zeros(1, d_out)
        pull = None if toward is None else torch.cat([toward.double() / scale[:, None], rest])
        C = C if toward is None else C + added * toward
        C = torch.cat([C * scale[:, None], rest])
        if bool(dead.any()):
            C[:d][dead] = 0.0 if toward is None else toward.double()[dead]
        always = mask.new_ones(d - len(mask), d_out)
        support = torch.cat([mask.bool(), always]).t().contiguous()
        return cls(padded, C, pull, support, scale, torch.zeros_like(C), torch.zeros_like(C))

    def solve_(
        self, columns: Tensor, damping: float, dtype: torch.dtype, budget: int, with_inverse: bool
    ) -> Tensor:
        """Fill X (and inverse) for these columns; those whose factor failed come back."""
        H = self.H.to(dtype)
        tolerance = torch.finfo(dtype).eps
        failed = [columns[:0]]
        sizes = self.support[columns].sum(1)
        order = sizes.argsort(descending=True, stable=True)
        itemsize = torch.finfo(dtype).bits // 8
        for part in _batches(sizes[order].tolist(), budget // itemsize):
            chosen = columns[order[part]]
            index = self._indices(chosen, int(sizes[order[part.start]]))  # (b, p)
            if index.shape[1] == 0:
                continue
            systems = H[index[:, :, None], index[:, None, :]]  # (b, p, p)
            padding = index == len(self.scale)
            systems.diagonal(dim1=1, dim2=2).add_(padding.to(dtype) + damping)
            L, info = torch.linalg.cholesky_ex(systems)
            pivots = L.diagonal(dim1=1, dim2=2).amin(1).square()
            good = (info == 0) & (pivots > tolerance * index.shape[1])
            right = self.C[index, chosen[:, None]]
            if damping and self.toward is not None:
                right = right + damping * self.toward[index, chosen[:, None]]
            x = torch.cholesky_solve(right.to(dtype)[:, :, None], L)[:, :, 0]
            good &= torch.isfinite(x).all(1)
            rows, columns_of = index[good], chosen[good][:, None]
            self.X[rows, columns_of] = x[good].double()
            if with_inverse:
                self.inverse[rows, columns_of] = _inverse_diagonal(L[good]).double()
            failed.append(chosen[~good])
        return torch.cat(failed)

    def _indices(self, columns: Tensor, width: int) -> Tensor:
        """(b, width): the support of each column, filled up with the index of the row of zeros."""
        d = len(self.scale)
        support = self.support[columns]
        index = torch.full((len(columns), width), d, device=columns.device)
        place = support.cumsum(1) - 1
        which, row = support.nonzero(as_tuple=True)
        index[which, place[which, row]] = row
        return index

    def unscaled(self) -> tuple[Tensor, Tensor]:
        scale = self.scale[:, None]
        support = self.support.t()
        return (self.X[:-1] * scale).where(support, 0), (self.inverse[:-1] * scale.square()).where(support, 0)


def _batches(sizes: list[int], entries: int) -> Iterator[slice]:
    """Slices of columns sorted by falling size: at most `entries` in a batch, and little padding."""
    start = 0
    while start < len(sizes):
        width = max(sizes[start], 1)
        most = max(1, entries // width**2)
        stop = start + 1
        # Padding to 1.25 times the size costs at most twice the work; on few columns it costs nothing.
        while stop < len(sizes) and stop - start < most and (1.25 * sizes[stop] >= width or width <= 32):
            stop += 1
        yield slice(start, stop)
        start = stop


def _inverse_diagonal(L: Tensor) -> Tensor:
    """diag((L L')^-1), from the rows of L^-1."""
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    return torch.linalg.solve_triangular(L, identity, upper=False).square().sum(1)
