"""Penalties: the sparsity-inducing term Omega(U) of a layer problem.

    minimize over U   fit(U; A, B) + Omega(U)

A penalty gives its value and its proximal map; solvers need nothing else.
U has shape (d_in, d_out): row i holds all weights that leave input i, column j all that reach output j.
The bias is not part of U: it is never penalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from feta.errors import ConfigError


class Penalty(Protocol):
    @property
    def strength(self) -> float: ...

    def value(self, U: Tensor) -> Tensor: ...

    def prox(self, U: Tensor, step: float) -> Tensor: ...


def _check_strength(owner: object, strength: float) -> None:
    if not strength >= 0:
        raise ConfigError(f"{type(owner).__name__}.strength must be >= 0, got {strength}")


@dataclass(frozen=True)
class L1:
    """strength * sum |u|: zeroes single weights."""

    strength: float

    def __post_init__(self) -> None:
        _check_strength(self, self.strength)

    def value(self, U: Tensor) -> Tensor:
        return self.strength * U.abs().sum()

    def prox(self, U: Tensor, step: float) -> Tensor:
        """argmin_V  value(V) + ||V - U||_F^2 / (2 * step): soft thresholding."""
        return torch.nn.functional.softshrink(U, step * self.strength)


@dataclass(frozen=True)
class GroupLasso:
    """strength * sum of the Euclidean norms of rows (dim 1, input neurons) or columns (dim 0, outputs)."""

    strength: float
    dim: int = 1

    def __post_init__(self) -> None:
        _check_strength(self, self.strength)
        if self.dim not in (0, 1):
            raise ConfigError(f"GroupLasso.dim must be 0 (columns) or 1 (rows), got {self.dim}")

    def norms(self, U: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(U, dim=self.dim, keepdim=True)
        return norms

    def value(self, U: Tensor) -> Tensor:
        return self.strength * self.norms(U).sum()

    def prox(self, U: Tensor, step: float) -> Tensor:
        """argmin_V  value(V) + ||V - U||_F^2 / (2 * step), in closed form."""
        # Clamp first: a group that is already zero must stay zero, not become NaN.
        keep = 1 - step * self.strength / self.norms(U).clamp_min(torch.finfo(U.dtype).tiny)
        return U * keep.clamp_min(0)
