"""Refits of large layers: all columns at once by conjugate gradients on the masked system.

    minimise  tr(V' H V) - 2 tr(C' V) + r ||(V - T)_P||_F^2      over V on the mask

One product with H for each iteration, where a factor for each column costs the cube of its support. The bias is
minimised over beforehand (which centres the inputs), H is scaled to a unit diagonal (which is the preconditioner: the
inverse from the support search saves a third of the iterations and doubles their price), and products are float32.
From the sparse copy that the support search ends with, a few iterations are enough.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from feta.ranks import ALONE, Ranks
from feta.solvers.columns import Columns
from feta.solvers.refit import Refit

TOLERANCE = 1e-5  # of the layer's error: the refit ends when an iteration lowers it by less
MOVING = 1e-4  # the same for a refit from the one before, whose targets move on once more
STEPS = 40  # at the most
# Work of a factor in units of that of a product with H, for as many multiplications: batches of small float64
# factors run at a fraction of the speed of one large float32 product.
FACTOR_WORK = {"cpu": 6.0, "cuda": 80.0}
TYPICAL_STEPS = 6


def factors_are_cheaper(mask: Tensor) -> bool:
    """Whether the columns' own factors, padded to 1.25 times their size, cost less than conjugate gradients."""
    kept = mask.sum(0, dtype=torch.float64)
    factors = float(kept.pow(3).sum()) * 1.25**3 / 6 * FACTOR_WORK.get(mask.device.type, 80.0)
    return factors <= TYPICAL_STEPS * float(len(mask)) * mask.numel()


@dataclass(frozen=True)
class Centred:
    """H (d, d) without the rows beyond d_in, for a ridge relative to the mean of its diagonal."""

    H: Tensor
    d_in: int
    ridge: float
    ranks: Ranks = ALONE  # processes that have the same, and share the columns

    @cached_property
    def coupling(self) -> Tensor:
        """(d - d_in, d_in): what the other rows are for given weights."""
        solved: Tensor = torch.linalg.solve(self.H[self.d_in :, self.d_in :], self.H[self.d_in :, : self.d_in])
        return solved

    @cached_property
    def added(self) -> float:
        return self.ridge * float(self.H.diagonal()[: self.d_in].mean())

    @cached_property
    def scaled(self) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix in float32 with a unit diagonal, the scale (d_in, 1) of the weights, and which inputs vary."""
        p = self.d_in
        reduced = torch.addmm(self.H[:p, :p], self.H[:p, p:], self.coupling, alpha=-1)
        alive = reduced.diagonal() > (1e-9 if p < len(self.H) else 0) * self.H.diagonal()[:p]
        diagonal = reduced.diagonal().where(alive, 0) + self.added
        reduced.diagonal().copy_(diagonal)
        scale = diagonal.where(diagonal > 0, 1).sqrt()[:, None]
        return reduced.div_(scale).div_(scale.t()).float(), scale, alive[:, None]

    def refit(self, C: Tensor, mask: Tensor, toward: Tensor, start: Tensor, error: float | None) -> Refit:
        """The refit from `start`; like `toward` and C it is (d, d_out).

        error: what the tolerance is a share of; None: that of the start, where C is H times `toward`. Where it is
            known, an earlier refit has been.
        """
        p, (H, scale, alive), share = self.d_in, self.scaled, Columns(C.shape[1], self.ranks)
        C = C.double()
        right = C[:p] - self.coupling.t() @ C[p:] if len(C) > p else C
        right = right.add(toward[:p], alpha=self.added).div_(scale).float()
        pulled = (toward[:p] * scale).float()
        X = (start[:p] * scale).float().where(alive, pulled).where(mask, 0)  # a dead input keeps what it had
        X, pulled, right, alive = (share.take(part) for part in (X, pulled, right, mask & alive))
        residual = right.sub_(share.each(H.matmul, X))
        tolerance = TOLERANCE if error is None else MOVING
        if error is None:
            error = max(0.0, share.sum(share.sums((pulled - X).mul_(residual))))
        steps = _descend(H, X, residual.mul_(alive), alive, tolerance * error, share)
        V = share.whole(X).double().div_(scale)
        if len(C) > p:
            free = torch.linalg.solve(self.H[p:, p:], C[p:])
            V = torch.cat([V, free - self.coupling @ V])
        return Refit(V, steps=steps, error=error)


def _descend(H: Tensor, X: Tensor, residual: Tensor, mask: Tensor, least: float, share: Columns) -> int:
    """Conjugate gradients on X in place, each column with its own steps; how many iterations it took."""
    direction, energy = residual.clone(), share.sums(residual.square())
    for step in range(1, STEPS + 1):
        image = share.each(H.matmul, direction).mul_(mask)
        curvature = share.sums(direction * image)
        rate = (energy / curvature).where(curvature > 0, 0)  # a column that has arrived stays
        X.addcmul_(direction, rate)
        if share.sum(rate * energy) <= least:
            return step
        residual.addcmul_(image, rate, value=-1)
        before, energy = energy, share.sums(residual.square())
        direction.mul_((energy / before).where(before > 0, 0)).add_(residual)
    return STEPS
