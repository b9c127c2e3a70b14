"""Sums of products over rows, the same to the last bit in whatever order their terms come and whoever holds them.

    S = sum over chunks of  A' T         entry (i, j) on a grid of   2^-30 a_i t_j

a_i and t_j are powers of two that the first chunk of all gives: about the largest norms its columns might have. A
float64 sum of numbers on one grid is exact, so that nothing is left to depend on the order. A term loses less to its
grid than the float32 product that made it has lost already, and no time: sums begin at an anchor so large that
float64 has just the multiples of the grid beside it. A sum that outgrows its grid 2^21 times is rounded like others.
"""

import torch
from torch import Tensor

from feta.ranks import Ranks

GRID = 2.0**-30  # of a term as large as the first one
ANCHOR = 1.5 * 2.0**52 * GRID  # between 2^52 and 2^53 multiples of the grid
# A term in the middle between two multiples would be rounded to the even one, and which that is depends on the sum
# so far. Times this none lies there: the 24 digits of a float32, and their copy 29 places below, fit into float64.
ASIDE = 1 + 2.0**-29
FLOOR = 2.0**-6  # of the usual column, for one of which the first chunk has nothing, or
OFTEN = 4  # less than as many rows
LOOKED_AT = 256  # rows


class ProductSum:
    """A sum (d, e) of float32 products as it grows; of float64 ones a plain sum."""

    def __init__(self, rows: Tensor, columns: Tensor, exact: bool) -> None:
        self.rows, self.columns, self.anchor = rows, columns, ANCHOR if exact else 0.0
        self.total = torch.outer(rows * self.anchor, columns)

    def add(self, part: Tensor, rows: slice | int = slice(None), columns: slice | int = slice(None)) -> None:
        """Add a product, or one of its parts; part holds no more than 24 digits."""
        self.total[rows, columns].add_(part, alpha=ASIDE if self.anchor else 1.0)

    def over(self, ranks: Ranks) -> Tensor:
        """The sum over all processes; nothing can be added after it."""
        if not self.anchor:
            return ranks.add_(self.total)
        return ranks.add_(self.total.addr_(self.rows, self.columns, alpha=-self.anchor)).div_(ASIDE)


def sizes(A: Tensor) -> Tensor:
    """For each column of a first chunk a power of two, about the largest norm it might have (d,), float64."""
    rows, A = len(A), A[:: -(-len(A) // LOOKED_AT)]
    most = A.abs().amax(0).double()
    alive = (most > 0) & torch.isfinite(most)
    if not bool(alive.any()):
        return torch.zeros_like(most)
    most = most.where(alive, 0)
    often = (A / most.where(alive, 1).to(A.dtype)).square_().sum(0) >= OFTEN
    usual = FLOOR * float(most[alive].median())
    found = most.where(often, most.clamp_min(usual)) * rows**0.5
    return torch.ldexp(torch.ones_like(found), torch.frexp(found).exponent)
