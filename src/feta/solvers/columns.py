"""The columns of a layer shared out over the processes of a job, and one choice of weights over all of them.

Columns share no weights, and are tied by nothing but the number that may stay. Blocks of columns go to the processes
in turn. Their borders do not depend on how many processes there are, and a single one works block by block too: a
product of other columns may be rounded differently.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.ranks import ALONE, Ranks
from feta.sparsity import top_k_mask

BLOCK = 512  # columns
DIGITS = 11  # bits that are looked at together, in as many counters as that gives


@dataclass(frozen=True)
class Columns:
    """Of `count` columns those that this process solves; tensors have them one block beside the other."""

    count: int
    ranks: Ranks = ALONE

    @property
    def shared(self) -> bool:
        return self.ranks.many and self.count > BLOCK

    @property
    def own(self) -> list[slice]:
        blocks = [slice(start, min(start + BLOCK, self.count)) for start in range(0, self.count, BLOCK)]
        return blocks[self.ranks.rank :: self.ranks.count] if self.shared else blocks

    def take(self, whole: Tensor) -> Tensor:
        """This process's columns of a matrix."""
        return torch.cat([whole[:, :0], *(whole[:, block] for block in self.own)], 1) if self.shared else whole

    def whole(self, part: Tensor) -> Tensor:
        """The matrix whose columns the processes have, in all of them."""
        if not self.shared:
            return part
        added = torch.uint8 if part.dtype is torch.bool else part.dtype
        found, start = part.new_zeros(len(part), self.count, dtype=added), 0
        for block in self.own:
            found[:, block] = part[:, start : (start := start + block.stop - block.start)]
        return self.ranks.add_(found).to(part.dtype)  # the others have zeros there

    def each(self, function: Callable[[Tensor], Tensor], part: Tensor) -> Tensor:
        """What a function makes of each of the blocks."""
        if self.count <= BLOCK or not self.own:
            return function(part)
        return torch.cat([function(each) for each in part.split([b.stop - b.start for b in self.own], 1)], 1)

    def sums(self, part: Tensor) -> Tensor:
        """Each column's sum, added up in the same order whatever columns are beside it."""
        return self.each(lambda block: block.sum(0, keepdim=True), part)[0]

    def total(self, value: float) -> float:
        """A whole number summed over the processes."""
        return self.ranks.sum([value])[0] if self.shared else value

    def sum(self, values: Tensor) -> float:
        """The sum of a number for each column, rounded once."""
        return self.ranks.exactly(values.tolist()) if self.shared else math.fsum(values.tolist())

    def top_k(self, scores: Tensor, k: int) -> Tensor:
        """The mask of the k largest of all columns' scores >= 0, of equal ones the first by index; none is handed on.

        The k-th largest is found digit by digit: the processes add up how many scores have which.
        """
        if not self.shared:
            return top_k_mask(scores, k)
        if not 0 < k < len(scores) * self.count:
            return torch.full_like(scores, k > 0, dtype=torch.bool)
        # Bits of floats that are not negative are ordered as the floats are.
        bits = scores.contiguous().view(torch.int32 if scores.dtype is torch.float32 else torch.int64).long()
        least, left, equal = self._kth_largest(bits, k, torch.finfo(scores.dtype).bits - 1)
        mask = bits > least
        ties = bits == least
        if equal > left:
            columns = torch.cat([torch.arange(block.start, block.stop) for block in self.own] or [torch.arange(0)])
            rows = torch.arange(len(scores))[:, None]
            last = len(scores) * self.count  # so that the first by index is the largest
            place = last - (rows * self.count + columns).to(scores.device)
            ties &= place >= self._kth_largest(place.where(ties, 0), left, last.bit_length())[0]
        return mask | ties

    def _kth_largest(self, values: Tensor, k: int, bits: int) -> tuple[int, int, int]:
        """Of whole numbers >= 0 in all processes the k-th largest, how many of it are among k, and how many are."""
        found, here = 0, 0
        for low in reversed(range(0, bits, DIGITS)):
            alike = values[(values >> (low + DIGITS)) == found]
            counts = torch.bincount((alike >> low) & (2**DIGITS - 1), minlength=2**DIGITS)
            above = self.ranks.add_(counts).cpu().flip(0).cumsum(0)  # with a digit this large or larger
            place = int((above < k).sum())
            larger = int(above[place - 1]) if place else 0
            k, here = k - larger, int(above[place]) - larger
            found = (found << DIGITS) + 2**DIGITS - 1 - place
        return found, k, here
