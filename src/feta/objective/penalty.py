"""Penalties: the sparsity-inducing term Omega(U) of a layer's objective, and the one table that names them.

    minimize over U   fit(U; A, B) + lambda * Omega(U)

A solver needs its value and its proximal map; lambda is the solver's. U has shape (d_in, d_out): row i holds all
weights that leave input i, column j all that reach output j. The bias is not part of U: it is never penalised.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from feta.errors import ConfigError, unknown_name
from feta.objective.group_lasso import GroupLasso
from feta.objective.l1 import L1


@runtime_checkable
class Penalty(Protocol):
    """A penalty: a frozen dataclass without a strength of its own.

    grouped: whether weights leave in groups, so that an exact number of them cannot be promised.
    """

    @property
    def grouped(self) -> bool: ...

    def value(self, U: Tensor) -> Tensor:
        """Omega(U)."""
        ...

    def prox(self, U: Tensor, step: float) -> Tensor:
        """argmin over V of Omega(V) + ||V - U||_F^2 / (2 * step), in closed form."""
        ...

    def sizes(self, U: Tensor) -> Tensor:
        """How large each part that leaves as a whole is: (d_in, d_out), (d_in, 1) or (1, d_out)."""
        ...


PENALTIES: dict[str, Penalty] = {"l1": L1(), "rows": GroupLasso(dim=1), "columns": GroupLasso(dim=0)}


def penalty_of(given: str | Penalty, where: str = "penalty") -> Penalty:
    """The penalty of that name, or the object itself; a ConfigError that starts with `where` for anything else."""
    if isinstance(given, Penalty) and not isinstance(given, type):
        return given
    if not isinstance(given, str):
        raise ConfigError(f"{where} must be a name or a Penalty object, got {given!r}")
    if given not in PENALTIES:
        raise unknown_name(where, given, PENALTIES)
    return PENALTIES[given]
