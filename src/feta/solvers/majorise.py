"""The ReLU objective as least squares with moving targets.

    F(V) = (1/m) ||rho(A~ V) - B||^2  <=  (1/m) ||A~ V - T||^2,     T = B where B > 0, min(Z, 0) elsewhere

with Z = A~ V_k. The bound is tight at V_k wherever no active output has died (B > 0 but Z <= 0). For those
the convex bound asks for B again, which can revive them but is not tight; the DC slope of Algorithm 1 asks
for Z, which is tight but leaves them dead. H = A~' A~ is fixed: a step needs only C = A~' T.

    StreamedTargets   C over all rows, one pass for each V
    SampledTargets    C = H W~ + (m / m_s) A_s~' (T_s - A_s~ W~) from m_s rows that are held: the part that is
                      linear in the trained weights W~ is exact, only what the ReLU changes is estimated
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from feta.calibration.statistics import Gram, add_cross, complete
from feta.problem import Activation, ActivationStream, LayerProblem
from feta.solvers.masked_refit import Refit, masked_refit
from feta.solvers.refit import with_bias_row


@dataclass(frozen=True)
class Step:
    """What the rows say at V: the objective there, and the cross terms of the next least-squares problem."""

    objective: float  # F(V)
    C: Tensor  # (d_in [+ 1], d_out) float64: A~' T, sums over rows like H


class TargetReader(Protocol):
    def start(self) -> Tensor:
        """C at the trained weights."""
        ...

    def at(self, V: Tensor, *, revive: bool = True) -> Step: ...

    def objective(self, V: Tensor) -> float:
        """F(V) alone, at half the price."""
        ...

    def release(self) -> None:
        """Let go of what is held; it is read again when it is needed."""
        ...


@dataclass(frozen=True)
class StreamedTargets:
    problem: LayerProblem

    def start(self) -> Tensor:
        return self.at(_trained(self.problem)).C

    def at(self, V: Tensor, *, revive: bool = True) -> Step:
        C, total, rows = torch.zeros_like(V, dtype=torch.float64), 0.0, 0
        for A, B in self.problem.rows.chunks():
            total += _add_chunk(C, self.problem, V, A, B, revive, None)
            rows += len(A)
        return Step(total / max(rows, 1), complete(C))

    def objective(self, V: Tensor) -> float:
        total, rows = 0.0, 0
        for A, B in self.problem.rows.chunks():
            total += _error(self.problem, _outputs(self.problem, V, A), B)
            rows += len(A)
        return total / max(rows, 1)

    def release(self) -> None:
        pass


@dataclass
class SampledTargets:
    """Rows are held: at most about `size` of them, so that memory does not depend on the data."""

    problem: LayerProblem
    statistics: Gram
    size: int
    _held: list[_Held] | None = field(default=None, init=False)
    _base: Tensor | None = field(default=None, init=False)

    @property
    def held(self) -> list[_Held]:
        if self._held is None:
            thin = self.problem.rows.thinned(max(1, -(-self.statistics.rows // self.size)))
            self._held = list(self._read(thin))
        return self._held

    @property
    def base(self) -> Tensor:
        """H W~."""
        if self._base is None:
            self._base = self.statistics.H @ _trained(self.problem).double()
        return self._base

    def _read(self, thin: ActivationStream) -> Iterator[_Held]:
        W = _trained(self.problem)
        if self.problem.own_outputs:
            yield from ((A, None, _outputs(self.problem, W, A)) for A in thin.inputs())
        else:
            yield from ((A, B, _outputs(self.problem, W, A)) for A, B in thin.chunks())

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for A, B, reference in self.held:
            yield A, self.problem.activation(reference) if B is None else B, reference

    def start(self) -> Tensor:
        if self.problem.own_outputs:  # T is A~ W~ itself, and the sample has nothing to say
            return self.base
        return self.at(_trained(self.problem)).C

    def at(self, V: Tensor, *, revive: bool = True) -> Step:
        C, total, rows = torch.zeros_like(V, dtype=torch.float64), 0.0, 0
        for A, B, reference in self._chunks():
            total += _add_chunk(C, self.problem, V, A, B, revive, reference)
            rows += len(A)
        return Step(total / rows, complete(C.mul_(self.statistics.rows / rows).add_(self.base)))

    def objective(self, V: Tensor) -> float:
        total = sum(_error(self.problem, _outputs(self.problem, V, A), B) for A, B, _ in self._chunks())
        return total / sum(len(A) for A, _, _ in self.held)

    def release(self) -> None:
        self._held = None


_Held = tuple[Tensor, Tensor | None, Tensor]  # A_s, B_s (None: rho of what follows), A_s~ W~


def _add_chunk(
    C: Tensor,
    problem: LayerProblem,
    V: Tensor,
    A: Tensor,
    B: Tensor,
    revive: bool,
    reference: Tensor | None,
) -> float:
    """C += A~' (T - reference); ||rho(Z) - B||^2 of one chunk of rows."""
    Z = _outputs(problem, V, A)
    T = relu_targets(Z, B, revive) if problem.activation is Activation.RELU else B
    add_cross(C, A, T if reference is None else T - reference)
    return _error(problem, Z, B)


def _error(problem: LayerProblem, Z: Tensor, B: Tensor) -> float:
    """||rho(Z) - B||^2; Z is used up."""
    error = (Z.clamp_min_(0) if problem.activation is Activation.RELU else Z).sub_(B)
    return float(torch.linalg.vector_norm(error, dtype=torch.float64)) ** 2


def _trained(problem: LayerProblem) -> Tensor:
    return with_bias_row(problem.W, problem.bias)


def _outputs(problem: LayerProblem, V: Tensor, A: Tensor) -> Tensor:
    v = V.to(A.dtype)
    return A @ v if problem.bias is None else torch.addmm(v[-1], A, v[:-1])


def relu_targets(Z: Tensor, B: Tensor, revive: bool = True) -> Tensor:
    """T: B where the output is active, min(Z, 0) elsewhere; without `revive` dead outputs stay at Z."""
    active = B > 0 if revive else (B > 0) & (Z > 0)
    return torch.where(active, B, Z.clamp_max(0))


@dataclass(frozen=True)
class RefitPath:
    """Refits on a support, each accepted only when it lowers the objective."""

    V: Tensor
    objectives: tuple[float, ...]
    refit: Refit


def refit_on_support(
    reader: TargetReader,
    H: Tensor,
    mask: Tensor,
    V: Tensor,
    *,
    rounds: int,
    ridge: float,
    tolerance: float = 1e-4,
) -> RefitPath:
    """min F over weights on the mask, from V: re-target, solve every column exactly, repeat."""
    V = V.double() * torch.cat([mask, mask.new_ones(len(V) - len(mask), V.shape[1])])
    step = reader.at(V)
    objectives, revive = [step.objective], True
    refit = masked_refit(H, step.C, mask, ridge=ridge, toward=V)
    for _ in range(rounds):
        after = reader.at(refit.V, revive=revive)
        if after.objective > objectives[-1]:
            if not revive:
                break
            # The convex bound was not tight: some outputs had died. The DC slope is, so it cannot fail.
            revive = False
            step = reader.at(V, revive=False)
        else:
            gain = 1 - after.objective / max(objectives[-1], 1e-300)
            V, step = refit.V, after
            objectives.append(after.objective)
            if gain < tolerance:
                break
        refit = masked_refit(H, step.C, mask, ridge=ridge, toward=V)
    return RefitPath(V, tuple(objectives), refit)
