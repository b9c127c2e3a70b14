"""From a margin to a bound on the generalisation error, for inputs that few balls cover (Xu and Mannor 2012).

    paper   A · γ^(−k/2) + B,   A² = ln 2 · N_y · 2^(k+1) · C_M^k / m,   B² = 2 ln(1/δ) / m
    sound   sqrt((2 K ln 2 + 2 ln(1/δ_γ)) / m),   K = N_y · max(1, (2 C_M / γ)^k)

Two inputs in one of K cells have one label and one ball of radius γ/2, so the loss is the same on both. The
theorem is for cells that were fixed before the samples were drawn, but γ is seen after: `sound` rounds it down to
a power of two 2^z and shares δ over all z, δ_γ = δ / (2 (|z| + 1) (|z| + 2)), which adds up to less than δ. Both
are conditional on k and C_M. Everything is a natural logarithm, so nothing overflows.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from feta.errors import check_fields, check_range
from feta.gates import gated

Form = Literal["paper", "sound"]
LN2 = math.log(2)


@gated
@dataclass(frozen=True)
class Manifold:
    """Inputs that balls of radius r cover with at most (regularity / r)^dimension of them."""

    dimension: float  # k
    regularity: float  # C_M
    source: str = "given"  # where the numbers come from

    def __post_init__(self) -> None:
        check_fields(self, "> 0 and finite", "dimension", "regularity")

    @classmethod
    def box(cls, size: int, width: float) -> "Manifold":
        """All points of a box of `size` coordinates, each in a range of `width`: nothing is assumed of the data."""
        # Cubes of side 2r / sqrt(size) lie in balls of radius r; ceil(u)^size of them suffice, ceil(u) <= 2u.
        return cls(float(size), width * math.sqrt(size), "box")


@dataclass(frozen=True)
class Setting:
    """What all bounds of one comparison share."""

    manifold: Manifold
    classes: int
    samples: int  # m
    delta: float = 0.05

    def __post_init__(self) -> None:
        check_range("", "in (0, 1)", delta=self.delta)
        check_fields(self, ">= 2", "classes")
        check_fields(self, ">= 1", "samples")

    @property
    def log_A(self) -> float:
        k, balls = self.manifold.dimension, log(self.manifold.regularity)
        return (log(LN2) + log(self.classes) + (k + 1) * LN2 + k * balls - log(self.samples)) / 2

    @property
    def log_B(self) -> float:
        return (LN2 + log(-math.log(self.delta)) - log(self.samples)) / 2

    def paper(self, log_margin: float) -> float:
        """ln(A · margin^(−k/2) + B)."""
        return log_sum(self.log_A - self.manifold.dimension / 2 * log_margin, self.log_B)

    def sound(self, log_margin: float) -> float:
        """ln of the robustness bound at a margin that was seen after the samples."""
        widest = LN2 + log(self.manifold.regularity)  # beyond it one ball is enough
        z = math.ceil(min(log_margin, widest + LN2) / LN2) - 1
        log_balls = self.manifold.dimension * max(0.0, widest - z * LN2)
        log_confidence = -math.log(self.delta) + LN2 + log(abs(z) + 1) + log(abs(z) + 2)  # ln(1 / δ_γ)
        cells = LN2 + log(LN2) + log(self.classes) + log_balls  # ln(2 K ln 2)
        return (log_sum(cells, LN2 + log(log_confidence)) - log(self.samples)) / 2


def log_sum(*terms: float) -> float:
    """ln of a sum from the logarithms of its terms; minus infinity of none."""
    return float(torch.tensor([-math.inf, *terms], dtype=torch.float64).logsumexp(0))


def log(value: float) -> float:
    """The natural logarithm, minus infinity at 0."""
    return math.log(value) if value > 0 else -math.inf
