"""An order of the inputs that suits N:M: groups in which large weights do not stand in each other's way.

    maximise over the order   sum over groups and columns of the n largest of m entries of E

E (channels, columns) is what each weight contributes, w^2 times the mean square of its input. Two channels of
different groups change places, the best exchanges of a sweep at once, as long as one gains.
"""

import torch
from torch import Tensor

SWEEPS = 100
WORK = 2**31  # channels^2 * columns; of more columns some stand for all
LEAST = 1e-6  # share of all that an exchange must gain
TRIED = 4096  # exchanges of a sweep, the best first


def exchanged_order(E: Tensor, n: int, m: int) -> Tensor:
    """The order (channels,): entry i says which channel goes to place i. A multiple of m channels."""
    channels, width = E.shape
    E = E[:, :: max(1, channels**2 * width // WORK)].float()
    order, group = torch.arange(channels), torch.arange(channels) // m
    replaced, kept = E.new_zeros(channels, channels), E.new_zeros(channels // m)  # replaced: [place, channel]
    changed = set(range(channels // m))
    least = LEAST * float(E.sum())
    for _ in range(SWEEPS):
        for g in changed:
            members = E[order[g * m : (g + 1) * m]]
            kept[g] = members.topk(n, 0).values.sum()
            for slot in range(m):
                top = members[torch.arange(m) != slot].topk(n, 0).values
                replaced[g * m + slot] = top[: n - 1].sum() + torch.maximum(top[n - 1], E).sum(1)
        here = replaced[:, order]  # [place, place]: the group of the first with the channel of the second
        gain = here + here.t() - kept[group][:, None] - kept[group]
        gain[group[:, None] >= group] = 0
        best, places = gain.flatten().topk(min(TRIED, gain.numel()))
        changed = set()
        for one in places[best > least].tolist():
            i, j = divmod(one, channels)
            if changed.isdisjoint((i // m, j // m)):
                order[[i, j]] = order[[j, i]]
                changed |= {i // m, j // m}
        if not changed:
            break
    return order
