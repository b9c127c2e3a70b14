"""Local search on a support by the errors after the ReLU, for layers so small that every candidate can be fitted.

    f_j(v) = ||rho(X v) - b_j||^2      bounded by least squares with moving targets (objective.datafit)

Every support that is one exchange away is fitted by some rounds of targets, all of a column's at once, on rows that
are held. Exchanges are chosen as in solvers.swaps; only the columns that changed are looked at again. Where there
are few supports in all, as in a depthwise 3 x 3 convolution, every one of them is fitted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.objective.datafit import DataFit
from feta.solvers.swaps import FEW, Exchanges, exchanged, inverses, spread, supports_in
from feta.sparsity import Pattern

TINY = 2**10  # d_in^2 * d_out up to which this is affordable
MANY = 256  # candidates up to which all supports are fitted, not exchanges alone
HELD = 2048  # rows at the most
ROUNDS = 8  # of targets for each candidate
LONG = 60  # and for the one that is chosen


@dataclass(frozen=True)
class Candidates:
    """The columns' own errors after the activation, on rows X (m, d_in [+ 1]) and B (m, d_out)."""

    fit: DataFit
    X: Tensor
    B: Tensor
    V: Tensor  # (d_in [+ 1], d_out), where the targets start from
    d_in: int
    pattern: Pattern | None = None  # that masks have and keep

    def improved(self, mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mask (d_in, d_out) after all exchanges that lower the error; weights (d_out,) are not squared."""
        worth = self.X.new_ones(self.B.shape[1]) if weights is None else weights.to(self.X).square()
        if self.d_in <= FEW:
            supports = supports_in(self.d_in, self.pattern)
            if len(worth) == 1:
                supports = supports[supports.sum(1) == mask.sum()]
            if len(supports) * len(worth) <= MANY:
                errors = torch.stack([self.values(j, supports) for j in range(len(worth))])
                return spread(errors * worth[:, None], supports, int(mask.sum()))
        return exchanged(self.look, mask, worth, 1e-9 * float(worth @ self.B.square().sum(0)))

    def look(self, columns: Tensor, S: Tensor) -> Exchanges:
        """All candidates of each column."""
        found = [self._one(int(column), s) for column, s in zip(columns, S, strict=True)]
        cost, gain, both = (torch.stack(parts) for parts in zip(*found, strict=True))
        allowed = None if self.pattern is None else self.pattern.exchanges(self.d_in)
        return Exchanges.best(cost, gain, both, allowed)

    def _one(self, column: int, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d = len(s)
        out, into = s.nonzero()[:, 0], (~s).nonzero()[:, 0]
        pairs = torch.cartesian_prod(out, into).reshape(-1, 2)
        n, masks = len(out), s.repeat(1 + d + len(pairs), 1)
        rows = torch.arange(len(masks))
        masks[rows[1 : 1 + n], out] = False
        masks[rows[1 + n : 1 + d], into] = True
        masks[rows[1 + d :], pairs[:, 0]], masks[rows[1 + d :], pairs[:, 1]] = False, True
        value = self.values(column, masks)
        cost, both = value.new_full((d,), torch.inf), value.new_full((d, d), -torch.inf)
        gain = -cost
        cost[out], gain[into] = value[1 : 1 + n] - value[0], value[0] - value[1 + n : 1 + d]
        both[pairs[:, 0], pairs[:, 1]] = value[0] - value[1 + d :]
        return cost, gain, both

    def values(self, column: int, masks: Tensor) -> Tensor:
        """The least f_column found on each of the supports (n, d_in)."""
        return self.fitted(column, masks, ROUNDS)[0]

    def weights(self, mask: Tensor) -> Tensor:
        """V (d_in [+ 1], d_out) on the mask, fitted for long; what is kept of a dead input stays as it was."""
        V = torch.cat([self.fitted(j, s[None], LONG)[1] for j, s in enumerate(mask.t())], 1)
        unknown = mask & ~self.X[:, : self.d_in].any(0)[:, None]
        V[: self.d_in] = self.V[: self.d_in].where(unknown, V[: self.d_in])
        return V

    def fitted(self, column: int, masks: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
        """The least errors (n,) in so many rounds on each of the supports (n, d_in), and their weights, (d, n)."""
        H, b = (self.X.t() @ self.X).double(), self.B[:, column : column + 1]
        always = masks.new_ones(len(masks), len(H) - self.d_in)
        scale = H.diagonal().where(H.diagonal() > 0, 1).rsqrt()
        unit = H * scale * scale[:, None]
        unit.diagonal().fill_(1 + 1e-7)
        N = (inverses(unit, torch.cat([masks, always], 1)) * scale * scale[:, None]).to(self.X)
        Z = (self.X @ self.V[:, column : column + 1]).expand(-1, len(masks))
        least, best = Z.new_full((len(masks),), torch.inf), Z.new_zeros(len(H), len(masks))
        for _ in range(rounds):
            C = self.X.t() @ self.fit.targets(Z, b).expand_as(Z)
            V = (N @ C.t()[:, :, None])[:, :, 0].t()
            Z = self.X @ V
            error = (self.fit.rho(Z) - b).square().sum(0)
            best, least = V.where(error < least, best), torch.minimum(error, least)
        return least, best
