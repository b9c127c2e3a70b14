"""The moving targets of a layer: the objective at some weights, and the cross terms of the next least squares.

    F(V) = (1/m) ||rho(A~ V + R) - rho(Z)||^2        C = A~' (T - R)

Z are the original's outputs before the activation, R what the network adds to the layer's own, T the targets at V
(objective.datafit). Read from all rows, or from m_s held ones: C is then A~'(Z - R) + (m / m_s) A_s~' (T_s - Z_s), so
that only what the activation changes is estimated, and for a linear layer nothing is.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from feta.calibration.statistics import Gram, products, ranks_of
from feta.problem import ActivationStream, LayerProblem, Rows
from feta.ranks import Ranks


@dataclass
class StreamedTargets:
    """The objective and the targets of a layer, read from all rows, in a pass of the stream for each look."""

    problem: LayerProblem

    @property
    def ranks(self) -> Ranks:
        """The processes that have the other rows."""
        return ranks_of(self.problem.rows)

    @property
    def stream(self) -> ActivationStream | None:
        """What this process's rows come from; None: from rows that all processes have."""
        return self.problem.rows

    def rows(self) -> Iterator[Rows]:
        yield from self.originals(self.problem.rows)

    def all_rows(self) -> list[Rows]:
        """Those of all processes."""
        return list(self.originals(self.problem.rows.sampled(sys.maxsize)) if self.ranks.many else self.rows())

    def originals(self, stream: ActivationStream) -> Iterator[Rows]:
        """The rows of a stream. Where it knows B alone, Z is what the trained weights give where B is not active."""
        fit, V = self.problem.fit, self.problem.trained
        for A, Z, R in stream.rows():
            if stream.rho is fit.rho:
                yield Rows(A, Z, R)
            else:
                now = fit.outputs(V, A)
                yield Rows(A, fit.targets(now if R is None else now + R, Z), R)

    def start(self) -> Tensor:
        """C of the original's own outputs, A~'(Z - R): exact, over all rows."""
        stream = self.problem.rows
        pairs = ((A, Z if R is None else Z - R) for A, Z, R in self.originals(stream))
        return products(pairs, ranks_of(stream), stream, with_bias=self.problem.bias is not None)

    def at(self, V: Tensor, *, revive: bool = True, targets: bool = True) -> tuple[float, Tensor]:
        """F(V), and C (d_in [+ 1], d_out) of the next least-squares problem: sums over rows in float64, like H.

        targets: whether C is asked for; F(V) alone comes at half the price.
        """
        fit, errors, counts = self.problem.fit, list[float](), list[int]()

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            for A, original, R in self.rows():
                Z = fit.outputs(V, A) if R is None else fit.outputs(V, A).add_(R)
                B = fit.rho(original)
                errors.append(float(fit.error(Z, B)))
                counts.append(len(A))
                yield A, self.wanted(fit.targets(Z, B, revive=revive), original, R) if targets else B

        if targets:
            C = products(pairs(), self.ranks, self.stream, with_bias=self.problem.bias is not None)
        else:
            C = torch.zeros_like(V, dtype=torch.float64)
            for _ in pairs():
                pass
        return self.ranks.exactly(errors) / self.ranks.exactly(counts), C

    def wanted(self, T: Tensor, original: Tensor, R: Tensor | None) -> Tensor:
        """What the layer itself must give for T, or how far that is from what is known."""
        return T if R is None else T - R


@dataclass
class SampledTargets(StreamedTargets):
    """The same from about `size` rows, which are held: memory does not depend on the data."""

    statistics: Gram  # of all rows
    size: int

    @cached_property
    def held(self) -> list[Rows]:
        """Rows drawn over all samples and positions."""
        return list(self.originals(self.problem.rows.sampled(self.size)))

    @cached_property
    def base(self) -> Tensor:
        """C of the original's outputs; for a layer's own outputs that is H W~, and no pass is needed."""
        own = self.problem.own_outputs
        return self.statistics.H @ self.problem.trained.double() if own else super().start()

    def rows(self) -> Iterator[Rows]:
        """Every process has the rows that are held, and reads its share of them."""
        yield from self.held[self.ranks.rank :: self.ranks.count]

    @property
    def stream(self) -> ActivationStream | None:
        return None

    def all_rows(self) -> list[Rows]:
        return self.held

    def start(self) -> Tensor:
        return self.base

    def at(self, V: Tensor, *, revive: bool = True, targets: bool = True) -> tuple[float, Tensor]:
        value, C = super().at(V, revive=revive, targets=targets)
        return value, C.mul_(self.statistics.rows / sum(len(rows.A) for rows in self.held)).add_(self.base)

    def wanted(self, T: Tensor, original: Tensor, R: Tensor | None) -> Tensor:
        return T - original
