"""The l1 norm: Omega(U) = sum |u|, which zeroes single weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class L1:
    """The sum of the weights' absolute values."""

    grouped: ClassVar[bool] = False

    def sizes(self, U: Tensor) -> Tensor:
        return U.abs()

    def value(self, U: Tensor) -> Tensor:
        return U.abs().sum()

    def prox(self, U: Tensor, step: float) -> Tensor:
        """Soft thresholding."""
        return torch.nn.functional.softshrink(U, step)
