"""l1: the sum of the weights' absolute values."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class L1:
    """The sum of the weights' absolute values, which zeroes single weights."""

    grouped: ClassVar[bool] = False

    def value(self, U: Tensor) -> Tensor:
        return U.abs().sum()

    def sizes(self, U: Tensor) -> Tensor:
        return U.abs()

    def prox(self, U: Tensor, step: float) -> Tensor:
        """Soft thresholding."""
        return F.softshrink(U, step)
