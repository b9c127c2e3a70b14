"""The ReLU objective as least squares with moving targets T (objective.datafit), read from the rows.

    F(V) = (1/m) ||rho(A~ V) - B||^2  <=  (1/m) ||A~ V - T||^2

H = A~' A~ is fixed: a step needs only C = A~' T.

    StreamedTargets   C over all rows, one pass for each V
    SampledTargets    C = H W~ + (m / m_s) A_s~' (T_s - A_s~ W~) from m_s held rows: what is linear in the trained
                      weights W~ is exact, only what the ReLU changes is estimated
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from feta.calibration.statistics import Gram, add_cross, complete
from feta.problem import LayerProblem


@dataclass
class StreamedTargets:
    """The objective and the targets of a layer, read from all rows, in a pass of the stream for each look."""

    problem: LayerProblem

    def rows(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Chunks of A, B, and A~ W~ where C is taken relative to it."""
        yield from ((A, B, None) for A, B in self.problem.rows.chunks())

    def finish(self, C: Tensor, rows: int) -> Tensor:
        """C over all of the layer's rows, from its sum over the `rows` that were read."""
        return C

    def start(self) -> Tensor:
        """C at the trained weights; no rows are held on to."""
        return self.at(self.problem.trained)[1]

    def at(self, V: Tensor, *, revive: bool = True) -> tuple[float, Tensor]:
        """F(V), and C (d_in [+ 1], d_out) of the next least-squares problem: sums over rows in float64, like H."""
        fit, C, total, count = self.problem.fit, torch.zeros_like(V, dtype=torch.float64), 0.0, 0
        for A, B, reference in self.rows():
            Z = fit.outputs(V, A)
            T = fit.targets(Z, B, revive=revive)
            add_cross(C, A, T if reference is None else T - reference)
            total += float(fit.error(Z, B))
            count += len(A)
        return total / count, complete(self.finish(C, count))

    def objective(self, V: Tensor) -> float:
        """F(V) alone, at half the price."""
        total, count = 0.0, 0
        for A, B, _ in self.rows():
            total += float(self.problem.fit.value(V, A, B))
            count += len(A)
        return total / count


@dataclass
class SampledTargets(StreamedTargets):
    """The same from about `size` rows, which are held: memory does not depend on the data."""

    statistics: Gram  # of all rows
    size: int

    @cached_property
    def held(self) -> list[tuple[Tensor, Tensor | None, Tensor]]:
        """A_s, B_s (None where it is rho of what follows), A_s~ W~."""
        fit, W = self.problem.fit, self.problem.trained
        thin = self.problem.rows.thinned(max(1, -(-self.statistics.rows // self.size)))
        pairs = ((A, None) for A in thin.inputs()) if self.problem.own_outputs else thin.chunks()
        return [(A, B, fit.outputs(W, A)) for A, B in pairs]

    @cached_property
    def base(self) -> Tensor:
        """H W~."""
        return self.statistics.H @ self.problem.trained.double()

    def rows(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for A, B, reference in self.held:
            yield A, self.problem.activation(reference) if B is None else B, reference

    def finish(self, C: Tensor, rows: int) -> Tensor:
        return C.mul_(self.statistics.rows / rows).add_(self.base)

    def start(self) -> Tensor:
        # T is A~ W~ itself for a layer's own outputs, and the sample has nothing to say.
        C = self.base if self.problem.own_outputs else super().start()
        self.__dict__.pop("held", None)  # the support search needs the memory; the rows are read again after it
        return C
