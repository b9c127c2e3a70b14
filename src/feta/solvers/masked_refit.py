"""Exact least-squares refits of many columns, each on a support of its own.

    V_j = argmin  v' H v - 2 C_j' v + r ||v - T_j||^2    over v with supp(v) in S_j
        : (H + r I)_SS v_S = (C_j + r T_j)_S

H (d, d) is a Gram matrix, C (d, d_out) its cross terms with any targets, T (d, d_out) where the ridge pulls to.
The mask (d_in, d_out) holds the supports S_j. Rows of H beyond it, the bias, are in every support and
outside the ridge; r is the ridge times the mean of H's diagonal over the other rows.

Columns of about the same support size are gathered, padded with the identity and factored together.
H is scaled to a unit diagonal first: one tolerance for pivots then fits every input, and float32 lasts
longer. On a CPU gathering H_SS costs as much as factoring it, and LAPACK called column by column is no
faster, provided that a batch stays in the cache; hence the small default budget there.
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

    V: Tensor  # (d, d_out) float64, zero outside the supports
    status: Status = Status.OK
    damping: float = 0.0  # the most that the ladder added, relative to the diagonal
    damped_columns: int = 0  # how many needed the ladder
    retried_columns: int = 0  # how many float32 could not do


def masked_refit(
    H: Tensor,
    C: Tensor,
    mask: Tensor,
    *,
    ridge: float = 0.0,
    toward: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    budget: int | None = None,
) -> Refit:
    """The least-squares optimum of every column on its support.

    ridge: relative to the mean of H's diagonal over the mask's rows; pulls to `toward` (d, d_out), or to zero.
    dtype: what is factored; columns that float32 cannot factor are done again in float64.
    budget: bytes of one batch of systems; by default up to 4 MiB on a CPU, 1 GiB elsewhere.
    """
    return _Systems.of(H, mask, ridge=ridge, dtype=dtype, budget=budget).solve(C, toward)


@dataclass(frozen=True)
class _Batch:
    """Some columns with a common width p; entries beyond a column's support point at the row of zeros."""

    columns: Tensor  # (b,)
    index: Tensor  # (b, p)
    L: Tensor  # (b, p, p)
    damping: float
    retried: bool


@dataclass(frozen=True)
class _Systems:
    """Every column's system, in scaled variables x = v / scale."""

    H: Tensor  # (d, d) as it came: systems are scaled once they are gathered, without a copy of H
    support: Tensor  # (d_out, d) bool
    scale: Tensor  # (d, 1)
    added: Tensor  # (d, 1): the ridge of each row
    dead: Tensor  # (d, 1) bool: an input that is always zero has an empty equation
    dtype: torch.dtype
    budget: int

    @classmethod
    def of(cls, H: Tensor, mask: Tensor, *, ridge: float, dtype: torch.dtype, budget: int | None) -> _Systems:
        d = len(H)
        if H.shape != (d, d) or mask.ndim != 2 or len(mask) > d or mask.dtype != torch.bool:
            got = f"H {tuple(H.shape)}, mask {tuple(mask.shape)} {mask.dtype}"
            raise ConfigError(f"masked_refit must have H (d, d) and mask (<= d, d_out) bool, got {got}")
        if not ridge >= 0:
            raise ConfigError(f"masked_refit.ridge must be >= 0, got {ridge}")
        H = H.double()
        added = H.new_zeros(d, 1)
        added[: len(mask)] = ridge * H.diagonal()[: len(mask)].mean()
        diagonal = H.diagonal()[:, None] + added
        dead = diagonal <= 0
        scale = diagonal.where(~dead, 1).rsqrt()
        support = torch.cat([mask, mask.new_ones(d - len(mask), mask.shape[1])]).t().contiguous()
        # On a CPU an eighth of H's own bytes at the most: a few batches are alive at once.
        size = budget or (min(2**22, max(2**18, H.numel())) if H.device.type == "cpu" else 2**30)
        return cls(H, support, scale, added, dead, dtype, size)

    def solve(self, C: Tensor, toward: Tensor | None) -> Refit:
        """The optimum for the cross terms C (d, d_out), the ridge pulling to `toward`, or to zero."""
        shape = (len(self.scale), len(self.support))
        for label, tensor in (("C", C), ("toward", toward)):
            if tensor is not None and tensor.shape != shape:
                raise ConfigError(f"masked_refit.{label} must have shape {shape}, got {tuple(tensor.shape)}")
        V = torch.zeros(shape[0] + 1, shape[1], dtype=self.scale.dtype, device=self.scale.device)
        # Of the row past the end, where padding points: scale 0, so that nothing comes of it.
        scale, added, dead = (
            torch.cat([t, t.new_zeros(1, 1)])[:, 0] for t in (self.scale, self.added, self.dead)
        )
        worst, damped, retried = 0.0, 0, 0
        for batch in self._factored():
            inside = batch.index.clamp_max(shape[0] - 1), batch.columns[:, None]
            pull = 0.0 if toward is None else toward[inside].double()
            here = scale[batch.index]
            b = (C[inside].double() + added[batch.index] * pull) * here
            # Nothing is known of a dead input's weight: it stays where the ridge would pull it to.
            b = torch.where(dead[batch.index], torch.as_tensor(pull, dtype=b.dtype), b)
            if batch.damping and toward is not None:
                b += batch.damping * torch.where(here > 0, pull / here, 0)
            x = torch.cholesky_solve(b.to(batch.L.dtype)[:, :, None], batch.L)[:, :, 0]
            V[batch.index, batch.columns[:, None]] = x.double() * here
            worst = max(worst, batch.damping)
            damped += len(batch.columns) if batch.damping else 0
            retried += len(batch.columns) if batch.retried else 0
        status = Status.DAMPED if damped or retried else Status.OK
        return Refit(V[:-1], status, worst, damped, retried)

    def _factored(self) -> Iterator[_Batch]:
        """Every column once, with the least damping for which its factor can be trusted."""
        left = self.support.any(1).nonzero()[:, 0]  # an empty support needs no factor: its V is zero
        precise = () if self.dtype == torch.float64 else ((torch.float64, 0.0),)
        for dtype, damping in ((self.dtype, 0.0), *precise, *((torch.float64, step) for step in LADDER)):
            failed = [left[:0]]
            sizes = self.support[left].sum(1)
            order = sizes.argsort(descending=True, stable=True)
            left, widths = left[order], sizes[order].tolist()
            for part in _batches(widths, 8 * self.budget // torch.finfo(dtype).bits):
                columns = left[part]
                index = self._indices(columns, widths[part.start])
                L, good = self._factors(index, damping, dtype)
                failed.append(columns[~good])
                retried = dtype != self.dtype
                yield _Batch(columns[good], index[good], L if bool(good.all()) else L[good], damping, retried)
            left = torch.cat(failed)
            if len(left) == 0:
                return
        raise ModelError(
            f"masked_refit must find a Cholesky factor for every column, got {len(left)} without one "
            f"even with {LADDER[-1]:g} of the diagonal added"
        )

    def _indices(self, columns: Tensor, width: int) -> Tensor:
        """(b, width): the support of each column, filled up with the index of the row of zeros."""
        support = self.support[columns]
        index = torch.full((len(columns), width), len(self.scale), device=columns.device)
        which, row = support.nonzero(as_tuple=True)
        index[which, (support.cumsum(1) - 1)[which, row]] = row
        return index

    def _factors(self, index: Tensor, damping: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """L (b, p, p) of the gathered systems, and which of them can be trusted."""
        inside = index.clamp_max(len(self.H) - 1)
        systems = self.H[inside[:, :, None], inside[:, None, :]]
        scale = torch.cat([self.scale[:, 0], self.scale.new_zeros(1)])[index]  # of padding: 0
        systems.mul_(scale[:, :, None]).mul_(scale[:, None, :])
        systems = systems.to(dtype)
        systems.diagonal(dim1=1, dim2=2).fill_(1 + damping)
        L, info = torch.linalg.cholesky_ex(systems)
        pivots = L.diagonal(dim1=1, dim2=2).amin(1).square()
        # Below this a pivot of the unit diagonal is made of rounding errors, whatever its sign.
        return L, (info == 0) & (pivots > torch.finfo(dtype).eps * index.shape[1])


def _batches(sizes: list[int], entries: int) -> Iterator[slice]:
    """Slices of columns sorted by falling size: at most `entries` in a batch, and little padding."""
    start = 0
    while start < len(sizes):
        width = sizes[start]
        most = max(1, entries // width**2)
        stop = start + 1
        # Padding to 1.25 times the size costs at most twice the work; small systems cost next to none.
        while stop < len(sizes) and stop - start < most and (1.25 * sizes[stop] >= width or width <= 32):
            stop += 1
        yield slice(start, stop)
        start = stop
