"""rows, columns: the sum of the Euclidean norms of the weights of each input, or of each output."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feta.errors import ConfigError


@dataclass(frozen=True)
class GroupLasso:
    """The sum of the Euclidean norms of U's rows, or columns, which leave as a whole.

    dim: the dimension that a group runs along. 1: rows, all weights of an input; 0: columns, all of an output.
    """

    dim: int = 1
    grouped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.dim not in (0, 1):
            raise ConfigError(f"GroupLasso.dim must be 0 (columns) or 1 (rows), got {self.dim}")

    def value(self, U: Tensor) -> Tensor:
        return self.sizes(U).sum()

    def sizes(self, U: Tensor) -> Tensor:
        return torch.linalg.vector_norm(U, dim=self.dim, keepdim=True)  # type: ignore[no-any-return]

    def prox(self, U: Tensor, step: float) -> Tensor:
        """Every group shortened by the step, or zero where it is shorter than that."""
        # Clamp first: a group that is already zero must stay zero, not become NaN.
        return U * (1 - step / self.sizes(U).clamp_min(torch.finfo(U.dtype).tiny)).clamp_min(0)
