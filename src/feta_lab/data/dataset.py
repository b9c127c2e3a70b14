"""A data set in memory: three splits, and the normalisation measured on the first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feta.errors import DataError

SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, on the CPU."""

    images: Tensor  # (n, c, h, w), uint8
    labels: Tensor  # (n,), int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Split:
        """The rows in the order given, as a copy."""
        return Split(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of pixel / 255, per channel, over the training split."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: Tensor) -> Normalisation:
        """Measured on uint8 images (n, c, h, w), exactly: from a histogram, in whole numbers."""
        moments = [_moments(images[:, channel]) for channel in range(images.shape[1])]
        return cls(tuple(mean for mean, _ in moments), tuple(std for _, std in moments))

    def apply(self, images: Tensor, device: torch.device | str) -> Tensor:
        """(images / 255 - mean) / std in float32 on `device`; moved as bytes, a quarter of the traffic."""
        scaled = images.to(device).to(torch.float32, copy=True).div_(255)
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        return scaled.sub_(mean).div_(std)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set ready to train and judge on."""

    name: str
    label: str  # what figures print
    train: Split
    validation: Split
    test: Split
    normalisation: Normalisation
    classes: int
    source: str  # the folder it came from

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


def halves(count: int) -> tuple[Tensor, Tensor]:
    """The rows of a test set that validate and those that test: disjoint, and the same for everyone."""
    # Sorting raw PCG64 output: NumPy promises that stream for good, and permutation's order it does not.
    order = np.argsort(np.random.PCG64(SPLIT_SEED).random_raw(count), kind="stable")
    first, second = order[: count // 2], order[count // 2 :]
    return torch.from_numpy(first), torch.from_numpy(second)


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of uint8 values / 255."""
    counts = torch.bincount(values.reshape(-1), minlength=256).tolist()
    n = sum(counts)
    total = sum(value * count for value, count in enumerate(counts))
    squares = sum(value * value * count for value, count in enumerate(counts))
    spread = n * squares - total * total  # n^2 times the variance, a whole number
    if spread == 0:
        raise DataError("Normalisation.of must get pixels that vary in every channel, got a constant channel")
    return total / n / 255, math.sqrt(spread) / n / 255
