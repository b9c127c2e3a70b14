"""Sparsity targets as exact counts, the masks that meet them, and what a tensor really has.

"90 %" of n weights means exactly round(0.1 n) non-zeros at the most; ties are broken by index,
so that a mask is a function of the scores alone. Biases are never counted.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from feta.errors import ConfigError
from feta.gates import gated


@runtime_checkable
class Pattern(Protocol):
    """Which weights of a layer may stay together, see feta.patterns."""

    @property
    def share(self) -> Fraction | None:
        """The share of zeros that the pattern itself says; None: the sparsity says it."""
        ...

    def over(self, taps: int) -> "Pattern":
        """The pattern of a layer whose kernel has so many taps; 1: a matrix product."""
        ...

    def mask(self, scores: Tensor, k: int) -> Tensor:
        """The weights that stay: the mask whose scores (d_in, d_out), squared and added up, are the most."""
        ...

    def count(self, d_in: int, d_out: int, k: int) -> int:
        """How many weights stay where k are asked for; a ConfigError for a layer that cannot have the pattern."""
        ...

    def exchanges(self, d_in: int) -> Tensor | None:
        """Which two weights of an output (d_in, d_in) may be exchanged; None: none."""
        ...

    def order(self, d_in: int) -> tuple[Tensor, list[int]]:
        """The inputs in an order in which those that are chosen together lie together, and their numbers."""
        ...

    def loosened(self, gone: float) -> "Pattern":
        """The pattern on the way from a dense layer (0) to itself (1)."""
        ...


@gated
@dataclass(frozen=True)
class Sparsity:
    """A target for one layer: the share of zeros, or the number of non-zeros to keep; and in which pattern."""

    share: float | None = None  # of zeros, in [0, 1)
    nonzeros: int | None = None  # instead of a share
    pattern: Pattern | None = None  # None: any weights may stay

    def __post_init__(self) -> None:
        if (self.share is None) == (self.nonzeros is None):
            raise ConfigError("Sparsity must have either a share or a number of nonzeros, not both")
        if self.share is not None:
            check_share(self.share)
        if self.nonzeros is not None and self.nonzeros < 0:
            raise ConfigError(f"Sparsity.nonzeros must be >= 0, got {self.nonzeros}")

    def count(self, n_weights: int) -> int:
        """How many of n_weights may stay non-zero."""
        if self.nonzeros is not None:
            if self.nonzeros > n_weights:
                raise ConfigError(f"Sparsity.nonzeros must be <= {n_weights}, got {self.nonzeros}")
            return self.nonzeros
        # Fractions of the printed decimal: 1 - 0.9 in binary is just under 0.1, and rounds 1.5 down to 1.
        return round(n_weights * (1 - Fraction(str(self.share))))

    def mask(self, scores: Tensor) -> Tensor:
        """The weights that stay, by scores (d_in, d_out) that are the larger the more a weight matters."""
        return kept_mask(scores, self.count(scores.numel()), self.pattern)


def check_share(share: float, where: str = "sparsity") -> float:
    """A share of zeros in [0, 1), or a ConfigError that says where it was asked for."""
    if not (math.isfinite(share) and 0 <= share < 1):
        hint = f"; write {share / 100:g} for {share:g} %" if 1 < share < 100 else ""
        raise ConfigError(f"{where} must be in [0, 1), got {share}{hint}")
    return float(share)


def kept_mask(scores: Tensor, k: int, pattern: Pattern | None = None) -> Tensor:
    """The mask of the k largest scores, or of those that a pattern keeps."""
    return top_k_mask(scores, k) if pattern is None else pattern.mask(scores, k)


SAMPLE = 2**14  # scores that tell roughly where the k-th largest lies
SELECT = {"cpu": 2**18, "cuda": 2**22}  # scores from which on that is worth it


def top_k_mask(scores: Tensor, k: int) -> Tensor:
    """The mask (bool, the shape of scores) of the k largest scores; of equal ones the first by index.

    Selection by the k-th value, in linear time: a stable sort of a large layer costs ten times as much.
    """
    flat = scores.reshape(-1)
    if not 0 < k < flat.numel():
        return torch.full_like(scores, k > 0, dtype=torch.bool)
    threshold = _kth_largest(flat, k)
    if flat.is_cuda and flat.numel() < SELECT["cuda"]:  # a few more kernels, and no wait for a number
        mask, ties = flat > threshold, flat == threshold
        return mask.logical_or_(ties & (ties.cumsum(0) <= k - mask.sum())).reshape(scores.shape)
    mask = flat >= threshold
    extra = int(torch.count_nonzero(mask)) - k
    if extra > 0:
        ties = torch.nonzero(flat == threshold).squeeze(1)
        mask[ties[len(ties) - extra :]] = False
    return mask.reshape(scores.shape)


def _kth_largest(flat: Tensor, k: int) -> Tensor:
    """The k-th largest value: of many, looked for among those near where a sample says it is."""
    if flat.numel() >= SELECT.get(flat.device.type, 2**22):
        sample = flat[:: flat.numel() // SAMPLE].sort(descending=True).values
        rank, margin = k / flat.numel() * len(sample), 2 * len(sample) ** 0.5
        high, low = sample[max(0, int(rank - margin))], sample[min(len(sample) - 1, int(rank + margin))]
        near = flat[(flat >= low) & (flat <= high)]
        left = k - int(torch.count_nonzero(flat > high))
        if 0 < left <= len(near):
            return torch.topk(near, left, sorted=False).values.min()
    return torch.topk(flat, k, sorted=False).values.min()


def measured(tensor: Tensor) -> float:
    """The share of entries that are exactly zero."""
    return 1.0 - int(torch.count_nonzero(tensor)) / max(tensor.numel(), 1)


def stored_size(tensor: Tensor) -> int:
    """Bytes that a tensor takes in a file: its values with a bit for each entry, or all of it where that is less."""
    dense = tensor.numel() * tensor.element_size()
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return dense
    sparse = int(torch.count_nonzero(tensor)) * tensor.element_size() + -(-tensor.numel() // 8) + 8 * tensor.ndim
    return min(dense, sparse)
