"""Local search on a support by exact gains, for layers small enough to look at every exchange of two weights.

    minimise  F(V) = sum over columns j of  w_j^2 f_j(v_j)      over the supports of V with as many weights

Columns share no weights: an exchange between two of them is what one gains by its best addition less what the
other loses by its best removal; within a column the two are looked at together. For least squares,
f(v) = v' H v - 2 c' v, all of this is in closed form: with N = H_SS^-1, v the optimum, g = c - H v and X = H N

    dropping i in S costs            v_i^2 / N_ii
    adding j outside S gains         g_j^2 / s_j                                       s_j = H_jj - (X H)_jj
    both together, in one column     (g_j + X_ji v_i / N_ii)^2 / (s_j + X_ji^2 / N_ii)  -  v_i^2 / N_ii

Layers with few inputs are solved over all supports instead. In a pattern of N:M exchanges stay inside a group; blocks
have none. All of it runs on the CPU: many short steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.sparsity import Pattern

SMALL = 2**18  # entries of all columns' inverses, up to which they are formed again and again
FEW = 10  # inputs up to which every support is tried
STARTS = 3  # at random, beside the one that is given, where each output has its own number of weights
FLAT = 1e-6  # of a unit diagonal: an input that the support explains so well has nothing to add


@dataclass(frozen=True)
class Exchanges:
    """For each of some columns: the best exchange inside, addition and removal, and which weights they concern."""

    inside: Tensor
    pair: tuple[Tensor, Tensor]  # (out, into)
    gain: Tensor
    into: Tensor
    cost: Tensor
    out: Tensor

    @classmethod
    def best(cls, cost: Tensor, gain: Tensor, both: Tensor, allowed: Tensor | None = None) -> "Exchanges":
        """Of cost, gain (b, d) and both (b, d, d) by [out, into]; infinite where there is nothing to choose.

        allowed: (d, d) the pairs of a pattern; outputs then exchange nothing with each other.
        """
        if allowed is not None:
            gain, both = torch.full_like(gain, -torch.inf), both.where(allowed, -torch.inf)
        (least, out), (most, into), (inside, pair) = cost.min(1), gain.max(1), both.flatten(1).max(1)
        return cls(inside, (pair // cost.shape[1], pair % cost.shape[1]), most, into, least, out)

    def put(self, columns: Tensor, new: "Exchanges") -> None:
        for name in ("inside", "gain", "into", "cost", "out"):
            getattr(self, name)[columns] = getattr(new, name)
        for mine, theirs in zip(self.pair, new.pair, strict=True):
            mine[columns] = theirs


Look = Callable[[Tensor, Tensor], Exchanges]  # columns (b,), their supports (b, d) -> their exchanges


def exchanged(look: Look, mask: Tensor, worth: Tensor, least: float, rounds: int = 200) -> Tensor:
    """The mask (d_in, d_out) after the best exchange, again and again, while one gains more than `least`.

    worth: (d_out,) the weights w^2 of the columns' errors.
    """
    S = mask.t().contiguous().clone()
    known = look(torch.arange(len(S)), S)
    for _ in range(rounds):
        inside = known.inside * worth
        across = ((known.gain * worth)[:, None] - known.cost * worth).fill_diagonal_(-torch.inf)  # [to, from]
        if not float(torch.maximum(inside.max(), across.max())) > least:  # NaN, where errors overflow, is no gain
            break
        if float(across.max()) > float(inside.max()):
            to, of = divmod(int(across.argmax()), len(S))
            S[to, known.into[to]], S[of, known.out[of]] = True, False
            changed = torch.tensor([to, of])
        else:
            changed = (inside > least).nonzero()[:, 0]
            S[changed, known.pair[0][changed]], S[changed, known.pair[1][changed]] = False, True
        known.put(changed, look(changed, S[changed]))
    return S.t().contiguous()


def squares(
    H: Tensor,
    C: Tensor,
    mask: Tensor,
    weights: Tensor | None = None,
    ridge: float = 0.0,
    toward: Tensor | None = None,
    pattern: Pattern | None = None,
) -> Tensor:
    """The mask improved for least squares, where the layer is small; as it is where it is not.

    Rows of H (d, d) and C (d, d_out) beyond the mask are in every support.

    weights: (d_out,) factors of the columns' errors, not squared.
    ridge: relative to the mean of H's diagonal over the mask's rows; it pulls to `toward` (d, d_out), or to zero.
    pattern: that the mask has and keeps.
    """
    if len(mask) * mask.numel() > SMALL or not 0 < (keep := int(mask.sum())) < mask.numel():
        return mask
    allowed = None if pattern is None else pattern.exchanges(len(mask))
    if pattern is not None and allowed is None:
        return mask
    there, mask = mask.device, mask.cpu()
    H, C = _reduced(H.cpu().double(), C.cpu().double(), len(mask), ridge, None if toward is None else toward.cpu())
    worth = C.new_ones(len(C)) if weights is None else weights.to(C).square()
    if len(H) <= FEW:
        return _best(H, C, keep, worth, supports_in(len(H), pattern)).to(there)

    def look(columns: Tensor, S: Tensor) -> Exchanges:
        return Exchanges.best(*_gains(H, C[columns], S), allowed)

    least = 1e-9 * float(worth @ C.square().sum(1))
    if pattern is None:
        return exchanged(look, mask, worth, least).to(there)
    # Outputs have nothing to do with each other: each takes the best of where several starts lead it.
    drawn = torch.rand(STARTS, *mask.shape, generator=torch.Generator().manual_seed(0))
    starts = [mask, *(pattern.mask(scores, keep) for scores in drawn)]
    found = torch.stack([exchanged(look, start, worth, least) for start in starts])
    best = torch.stack([_explained(H, C, one.t()) for one in found]).argmax(0)
    return found[best, :, torch.arange(len(best))].t().contiguous().to(there)


def _best(H: Tensor, C: Tensor, keep: int, worth: Tensor, supports: Tensor) -> Tensor:
    """The best of all masks."""
    explained = torch.einsum("ci,nij,cj->cn", C, inverses(H, supports), C)
    return spread(-explained * worth[:, None], supports, keep)


def all_supports(d: int) -> Tensor:
    return (torch.arange(2**d)[:, None] >> torch.arange(d)) & 1 == 1  # (2^d, d)


def supports_in(d: int, pattern: Pattern | None) -> Tensor:
    """All supports of one output that a pattern allows, as full as it allows."""
    supports = all_supports(d)
    if pattern is None:
        return supports
    return supports[(pattern.mask(supports.t().float(), 0).t() == supports).all(1)]


def spread(errors: Tensor, supports: Tensor, keep: int) -> Tensor:
    """The mask (d, d_out) of the least total error: every column's best support of each size, then the best sizes.

    errors: (d_out, n) of each column on each of the supports (n, d).
    """
    size, d = supports.sum(1), supports.shape[1]
    each = (errors.where(size == n, torch.inf).min(1) for n in range(d + 1))
    least, which = (torch.stack(parts, 1) for parts in zip(*each, strict=True))  # (d_out, d + 1)
    total, taken = errors.new_full((keep + 1,), torch.inf), []
    total[0] = 0
    for column in least:  # the best total for every number of weights spent so far
        options = errors.new_full((d + 1, keep + 1), torch.inf)
        for n in range(min(d, keep) + 1):
            options[n, n:] = total[: keep + 1 - n] + column[n]
        total, chosen = options.min(0)
        taken.append(chosen)
    mask = torch.zeros(d, len(errors), dtype=torch.bool)
    for j in reversed(range(len(errors))):
        n = int(taken[j][keep])
        mask[:, j] = supports[which[j, n]]
        keep -= n
    return mask


def inverses(H: Tensor, S: Tensor) -> Tensor:
    """H_SS^-1 for each of the supports S (b, d), zero outside them."""
    s = S.to(H.dtype)
    inner = s[:, :, None] * s[:, None, :]
    inverse: Tensor = torch.linalg.inv(H * inner + torch.diag_embed(1 - s))
    return inverse * inner


def _explained(H: Tensor, C: Tensor, S: Tensor) -> Tensor:
    """By how much each column's error falls on its support."""
    return torch.einsum("ci,cij,cj->c", C, inverses(H, S), C)


def _gains(H: Tensor, C: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For C, S (b, d): the cost of dropping, the gain of adding, and that of [out, into] in one column."""
    N = inverses(H, S)
    v = (N @ C[:, :, None])[:, :, 0]
    X = N @ H  # [i, j]: X_ji above
    g, left = C - v @ H, H.diagonal() - (X * H).sum(1)
    diagonal = N.diagonal(dim1=1, dim2=2).where(S, 1)
    cost = (v.square() / diagonal).where(S, torch.inf)
    gain = (g.square() / left).where(~S & (left > FLAT), -torch.inf)
    moved = g[:, None, :] + X * (v / diagonal)[:, :, None]
    room = left[:, None, :] + X.square() / diagonal[:, :, None]
    both = moved.square() / room - cost[:, :, None]
    return cost, gain, both.where(S[:, :, None] & ~S[:, None, :] & (room > FLAT), -torch.inf)


def _reduced(H: Tensor, C: Tensor, p: int, ridge: float, toward: Tensor | None) -> tuple[Tensor, Tensor]:
    """H (p, p) and C (d_out, p), the other rows minimised over, the ridge written out, H's diagonal one."""
    added = ridge * H.diagonal()[:p].mean()
    reduced, right = H[:p, :p].clone(), C[:p]
    if toward is not None:
        right = right + added * toward[:p]
    if p < len(H):
        coupling = torch.linalg.solve(H[p:, p:], H[p:, :p])
        reduced, right = reduced - H[:p, p:] @ coupling, right - coupling.t() @ C[p:]
    reduced.diagonal().add_(added)
    scale = reduced.diagonal().where(reduced.diagonal() > 0, 1).rsqrt()
    reduced = reduced * scale * scale[:, None]
    reduced.diagonal().fill_(1 + 1e-9)  # so that equal inputs can be inverted
    return reduced, (right * scale[:, None]).t()
