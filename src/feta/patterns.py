"""Patterns: which weights of a layer stay or go together, as projections of a matrix (d_in, d_out) on its masks.

    "2:4"        of every 4 consecutive inputs of one output 2 stay
    "4x1"        blocks of 4 outputs x 1 input, as nn.Linear stores them, stay or go as a whole
    "neurons"    whole outputs stay or go; "channels" says the same of convolutions

Consecutive inputs of a convolution are channels that meet the same tap of the kernel: sparse tensor cores read them
so, and so does a channels-last weight. Groups of a grouped convolution are layers of their own.

The r inputs that are left over at the end are a group that keeps ceil(r N / M); blocks must fill a layer.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from feta.errors import ConfigError, shown
from feta.sparsity import Pattern, top_k_mask

OUTPUTS = ("neurons", "channels")


@dataclass(frozen=True)
class NofM:
    """Of every m consecutive inputs of an output n stay."""

    n: int
    m: int
    taps: int = 1

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def share(self) -> Fraction:
        return 1 - Fraction(self.n, self.m)

    def over(self, taps: int) -> "NofM":
        return replace(self, taps=taps)

    def mask(self, scores: Tensor, k: int = 0) -> Tensor:
        columns = scores.reshape(len(scores) // self.taps, -1)  # (channels, taps * d_out)
        whole = len(columns) - len(columns) % self.m
        groups = columns[:whole].reshape(-1, self.m, columns.shape[1]), columns[whole:][None]
        parts = [_largest(part, self._quota(part.shape[1])).reshape(-1, columns.shape[1]) for part in groups]
        return torch.cat(parts).reshape(scores.shape)

    def count(self, d_in: int, d_out: int, k: int = 0) -> int:
        groups, rest = divmod(d_in // self.taps, self.m)
        return (groups * self.n + self._quota(rest)) * self.taps * d_out

    def exchanges(self, d_in: int) -> Tensor:
        row = torch.arange(d_in)
        group = row // self.taps // self.m * self.taps + row % self.taps
        return group[:, None] == group

    def loosened(self, gone: float) -> "NofM":
        return replace(self, n=round(self.m - (self.m - self.n) * gone))

    def order(self, d_in: int) -> tuple[Tensor, list[int]]:
        return _order(d_in, self.taps, self.m)

    def _quota(self, inputs: int) -> int:
        return -(-inputs * self.n // self.m)


@dataclass(frozen=True)
class Blocks:
    """Blocks of some outputs x some inputs; without a number all inputs: whole outputs."""

    outputs: int
    inputs: int | None
    name: str
    taps: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def share(self) -> None:
        return None

    @property
    def whole(self) -> bool:
        """Whether outputs go as a whole."""
        return self.inputs is None

    def over(self, taps: int) -> "Blocks":
        return self if self.inputs is None else replace(self, taps=taps)

    def mask(self, scores: Tensor, k: int) -> Tensor:
        (d_in, d_out), width = scores.shape, self._width(len(scores))
        kept = top_k_mask(self.norms(scores), self.count(d_in, d_out, k) // (width * self.outputs))
        return kept.repeat_interleave(width, 0).repeat_interleave(self.outputs, 2).reshape_as(scores)

    def norms(self, scores: Tensor) -> Tensor:
        """The squared norm of each block, (blocks of channels, taps, blocks of outputs)."""
        shape = self._width(len(scores)), self.taps, scores.shape[1] // self.outputs, self.outputs
        return scores.square().reshape(-1, *shape).sum((1, 4))

    def count(self, d_in: int, d_out: int, k: int) -> int:
        """Whole blocks: as near to k as they come, and one at least."""
        width = self._width(d_in)
        if d_out % self.outputs or d_in % (self.taps * width):
            got = f"{d_out} outputs x {d_in // self.taps} inputs"
            raise ConfigError(
                f"pattern '{self}' must fill a layer with whole blocks, got {got}; leave it out of layers="
            )
        size = width * self.outputs
        return size * max(min(k, 1), round(Fraction(k, size)))

    def exchanges(self, d_in: int) -> None:
        return None

    def loosened(self, gone: float) -> "Blocks":
        return self

    def order(self, d_in: int) -> tuple[Tensor, list[int]]:
        return _order(d_in, self.taps, self._width(d_in))

    def _width(self, d_in: int) -> int:
        return self.inputs or d_in


def parse_pattern(pattern: str | Pattern | None, where: str = "pattern") -> Pattern | None:
    """A pattern by its text, or the one that is given. Raises ConfigError for anything else."""
    if pattern is None or isinstance(pattern, NofM | Blocks):
        return pattern
    text = str(pattern)
    if text in OUTPUTS:
        return Blocks(1, None, text)
    found = re.fullmatch(r"(\d+)([:x])(\d+)", text)
    first, second = (int(found[1]), int(found[3])) if found else (0, 0)
    if found and found[2] == ":" and 0 < first < second:
        return NofM(first, second)
    if found and found[2] == "x" and first * second > 1:
        return Blocks(first, second, f"{first}x{second}")
    raise ConfigError(
        f"{where} must be N:M with 0 < N < M such as '2:4', blocks of outputs x inputs such as '4x1', or one of "
        f"{list(OUTPUTS)}, got {shown(pattern)}"
    )


def _order(d_in: int, taps: int, length: int) -> tuple[Tensor, list[int]]:
    parts = torch.arange(d_in).reshape(-1, taps).split(length)
    return torch.cat([part.t().reshape(-1) for part in parts]), [len(part) for part in parts for _ in range(taps)]


def _largest(groups: Tensor, n: int) -> Tensor:
    """The mask of the n largest along dimension 1; of equal ones the first."""
    if n >= groups.shape[1]:
        return torch.ones_like(groups, dtype=torch.bool)
    least = _nth_largest(groups, n)
    mask = groups >= least
    if not mask.is_cuda and int(torch.count_nonzero(mask)) == n * least.numel():  # a GPU would wait for the number
        return mask
    more, ties = groups > least, groups == least
    return more.logical_or_(ties & (ties.cumsum(1) <= n - more.sum(1, keepdim=True)))


def _nth_largest(groups: Tensor, n: int) -> Tensor:
    """Along dimension 1, by bubbling up whole slices: many times as fast as sorting millions of short rows."""
    left = list(groups.unbind(1))
    for _ in range(n):
        largest, *others = left
        left = []
        for other in others:
            left.append(torch.minimum(largest, other))
            largest = torch.maximum(largest, other)
    return largest[:, None]
