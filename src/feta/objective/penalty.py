"""Penalties: the sparsity-inducing term Omega(U) of a layer's objective, and the one table that names them.

    F(V) = (1/m) fit(V) + lambda * Omega(U),      U (d_in, d_out): V without its bias row

Row i of U holds all weights that leave input i, column j all that reach output j.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from feta.errors import ConfigError, unknown_name
from feta.objective.datafit import DataFit


@runtime_checkable
class Penalty(Protocol):
    """Omega: a frozen dataclass; lambda is not its own. `value` is the sum of `sizes` where it is inherited.

    grouped: whether weights leave in groups, so that an exact number of them cannot be promised.
    """

    @property
    def grouped(self) -> bool: ...

    def value(self, U: Tensor) -> Tensor:
        """Omega(U)."""
        return self.sizes(U).sum()

    def prox(self, U: Tensor, step: float) -> Tensor:
        """argmin over V of Omega(V) + ||V - U||_F^2 / (2 * step), in closed form."""

    def sizes(self, U: Tensor) -> Tensor:
        """How large each part is that leaves as a whole: (d_in, d_out), (d_in, 1) or (1, d_out)."""


@dataclass(frozen=True)
class L1(Penalty):
    """The sum of the weights' absolute values, which zeroes single weights."""

    grouped: ClassVar[bool] = False

    def sizes(self, U: Tensor) -> Tensor:
        return U.abs()

    def prox(self, U: Tensor, step: float) -> Tensor:
        """Soft thresholding."""
        return torch.nn.functional.softshrink(U, step)


@dataclass(frozen=True)
class GroupLasso(Penalty):
    """The sum of the Euclidean norms of U's rows, or columns, which leave as a whole.

    dim: the dimension that a group runs along. 1: rows, all weights of an input; 0: columns, all of an output.
    """

    dim: int = 1
    grouped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.dim not in (0, 1):
            raise ConfigError(f"GroupLasso.dim must be 0 (columns) or 1 (rows), got {self.dim}")

    def sizes(self, U: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(U, dim=self.dim, keepdim=True)
        return norms

    def prox(self, U: Tensor, step: float) -> Tensor:
        """Every group shortened by the step, or zero where it is shorter than that."""
        # Clamp first: a group that is already zero must stay zero, not become NaN.
        return U * (1 - step / self.sizes(U).clamp_min(torch.finfo(U.dtype).tiny)).clamp_min(0)


PENALTIES: dict[str, Penalty] = {"l1": L1(), "rows": GroupLasso(dim=1), "columns": GroupLasso(dim=0)}


def penalty_of(given: str | Penalty, where: str) -> Penalty:
    """The penalty of that name, or the object itself; a ConfigError that names `where` for anything else."""
    if isinstance(given, Penalty) and not isinstance(given, type):
        return given
    if not isinstance(given, str):
        raise ConfigError(f"{where} must be a name or a Penalty object, got {given!r}")
    if given not in PENALTIES:
        raise unknown_name(where, given, PENALTIES)
    return PENALTIES[given]


@dataclass(frozen=True)
class Regularised:
    """F: a data fit and a penalty on the weights; the bias is never penalised.

    strength: lambda, relative to the mean error of a row.
    """

    fit: DataFit
    penalty: Penalty
    strength: float

    def penalise(self, V: Tensor) -> float:
        """lambda * Omega(U)."""
        return self.strength * float(self.penalty.value(self.fit.weights(V)))

    def prox(self, V: Tensor, step: float) -> Tensor:
        """The proximal map of lambda * Omega; it leaves the bias row as it is."""
        U = self.penalty.prox(self.fit.weights(V), step * self.strength)
        return torch.cat([U, V[-1:]]) if self.fit.with_bias else U
