"""The objective of the paper's Algorithm 1: F(V) = (1/m) fit(V) + lambda * Omega(U), U = V without its bias row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.objective.datafit import DataFit
from feta.objective.penalty import Penalty


@dataclass(frozen=True)
class Regularised:
    """A data fit and a penalty on the weights; the bias is not penalised.

    strength: lambda, relative to the mean error of a row.
    """

    fit: DataFit
    penalty: Penalty
    strength: float

    def penalise(self, V: Tensor) -> float:
        """lambda * Omega(U)."""
        return self.strength * float(self.penalty.value(self.fit.weights(V)))

    def prox(self, V: Tensor, step: float) -> Tensor:
        """The proximal map of lambda * Omega, which leaves the bias row as it is."""
        U = self.penalty.prox(self.fit.weights(V), step * self.strength)
        return torch.cat([U, V[-1:]]) if self.fit.with_bias else U
