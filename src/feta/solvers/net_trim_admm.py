"""Net-Trim's convex program on a stream of rows, by ADMM with one array as long as the data.

    minimise ||U||_1   subject to   ||(A U - B)_Omega||_F <= epsilon,   (A U)_Omega^c <= V

U (d_in [+ 1], d_out) has the bias as its last row, with input 1, outside the norm. Omega = {B > 1e-6}, all
entries for a linear layer. One ball holds all columns together, so nothing separates but the rows of A.

ADMM splits W1 = A W3 (m, d_out), in the set C of the constraints, and the sparse W2 = W3. Written with
Z = A W3 - U1 and Q = W3 - U2, the two duals and W1, W2 are functions of Z and Q alone, and an iteration is

    D = P_C(Z) - Z        E = soft(Q, 1 / rho) - Q
    S = (A'A / s^2 + I)^-1 (A'D / s^2 + E)
    Z <- A (W3 + 2 S) - D        Q <- (W3 + 2 S) - E        W3 <- W3 + S

which are the same iterates. With T = B on Omega and V elsewhere, P_C needs only Z - T and the one number
||(Z - T)_Omega||. So one array (m, d_out) is allocated, and D and Z - T take turns in it; that is Net-Trim's
known price. A and B come chunk by chunk, twice an iteration. s = 0.3 sqrt(max A'A) is the authors' scaling of
A, B, V and epsilon: it leaves the program as it is, and enters as the weight 1 / s^2 of its first split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from feta.calibration.statistics import gram
from feta.problem import Activation, ActivationStream, Status
from feta.solvers.cholesky import factor

ACTIVE = 1e-6  # outputs above this belong to Omega


@dataclass(frozen=True)
class Gap:
    """How far the response of some weights is from the constraints."""

    misfit: float  # ||(A U - B)_Omega||_F
    excess: float  # max (A U - V)_Omega^c, 0 when all are met
    size: float  # ||B_Omega||_F
    active: int  # entries of Omega

    @property
    def scale(self) -> float:
        """The root mean square of B on Omega: what an output of this layer is like."""
        return self.size / math.sqrt(max(self.active, 1))


@dataclass(frozen=True)
class Constraints:
    """The set C, but for its epsilon; V is given by the weights whose response it is, None for V = 0."""

    rows: ActivationStream
    activation: Activation
    has_bias: bool
    V: Tensor | None = None  # (d_in [+ 1], d_out)

    def omega(self, B: Tensor) -> Tensor:
        return torch.ones_like(B, dtype=torch.bool) if self.activation is Activation.LINEAR else B > ACTIVE

    def response(self, A: Tensor, X: Tensor) -> Tensor:
        """A X with the bias row, in the precision of the rows."""
        X = X.to(A.dtype)
        return torch.addmm(X[-1], A, X[:-1]) if self.has_bias else A @ X

    def targets(self, A: Tensor, B: Tensor, omega: Tensor) -> Tensor:
        """T: B on Omega, V elsewhere."""
        if self.activation is Activation.LINEAR:
            return B
        return B.where(omega, 0 if self.V is None else self.response(A, self.V))

    def gap(self, X: Tensor) -> Gap:
        """One pass: are the constraints met by the weights X?"""
        misfit = size = excess = 0.0
        active = 0
        for A, B in self.rows.chunks():
            omega = self.omega(B)
            R = self.response(A, X).sub_(self.targets(A, B, omega))
            misfit += _sum_squares(R * omega)
            size += _sum_squares(B * omega)
            excess = max(excess, float(R.masked_fill_(omega, 0).max()))
            active += int(omega.sum())
        return Gap(math.sqrt(misfit), excess, math.sqrt(size), active)


@dataclass
class NetTrimAdmm:
    """The state of the iteration; epsilon may change between calls of `run`, which go on where it stands."""

    constraints: Constraints
    rho: float
    W3: Tensor  # (d_in [+ 1], d_out) float64
    Q: Tensor = field(init=False)
    gaps: Tensor = field(init=False)  # (m, d_out): Z - T, or D
    distance: float = field(init=False)  # ||(Z - T)_Omega||
    inverse: Tensor = field(init=False)  # (A'A / s^2 + I)^-1
    weight: float = field(init=False)  # 1 / s^2
    status: Status = field(init=False)
    iterations: int = field(default=0, init=False)
    primal: float = field(default=math.inf, init=False)  # ||W2 - W3|| / ||W3||
    dual: float = field(default=math.inf, init=False)  # ||change of W3|| / ||W3||

    def __post_init__(self) -> None:
        statistics = gram(self.constraints.rows, with_bias=self.constraints.has_bias)
        H = statistics.H
        # The authors' 0.3 sqrt(max A'A); a layer whose inputs are all dead has nothing to scale.
        self.weight = 1 / (0.09 * float(H.abs().max()) or 1.0)
        found = factor(H.mul_(self.weight) + torch.eye(len(H), dtype=H.dtype, device=H.device))
        self.inverse, self.status = found.inverse(), found.status
        self.W3 = self.W3.double().clone()
        self.Q = self.W3.clone()
        _, B = next(iter(self.constraints.rows.chunks()))
        self.gaps = B.new_zeros(statistics.rows, B.shape[1])
        self._respond(self.W3)

    @property
    def W2(self) -> Tensor:
        """The sparse copy, the bias row as it stands."""
        W2 = soft(self.Q, 1 / self.rho)
        if self.constraints.has_bias:
            W2[-1] = self.Q[-1]
        return W2

    def run(self, iterations: int, epsilon: float) -> None:
        for _ in range(iterations):
            W2 = self.W2
            E = W2 - self.Q
            S = self.inverse @ self._pull(epsilon).mul_(self.weight).add_(E)
            X = self.W3.add(S, alpha=2)
            self.W3 += S
            self.Q = X - E
            self._respond(X)
            size = max(float(self.W3.norm()), 1e-300)
            self.primal, self.dual = float((W2 - self.W3).norm()) / size, float(S.norm()) / size
            self.iterations += 1

    def _pull(self, epsilon: float) -> Tensor:
        """Turn Z - T into D = P_C(Z) - Z, in place; A'D in float64."""
        # On Omega D = -(1 - epsilon / distance)(Z - T), or 0 inside the ball; elsewhere D = -max(Z - T, 0).
        outside = 1 - min(1.0, epsilon / self.distance) if self.distance > 0 else 0.0
        total = torch.zeros_like(self.W3)
        for A, B, D in self._chunks():
            if self.constraints.activation is Activation.LINEAR:
                D.mul_(-outside)
            else:
                torch.where(B > ACTIVE, D * -outside, D.clamp(min=0).neg_(), out=D)
            total[: A.shape[1]] += A.t() @ D
            if self.constraints.has_bias:
                total[-1] += D.sum(0)
        return total

    def _respond(self, X: Tensor) -> None:
        """Turn D into Z - T with Z = A X - D, in place, and measure it on Omega."""
        X = X.to(self.gaps.dtype)
        squares = 0.0
        has_bias = self.constraints.has_bias
        for A, B, R in self._chunks():
            omega = self.constraints.omega(B)
            R.addmm_(A, X[:-1] if has_bias else X, beta=-1)
            if has_bias:
                R += X[-1]
            R -= self.constraints.targets(A, B, omega)
            squares += _sum_squares(R * omega)
        self.distance = math.sqrt(squares)

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Chunks of A and B beside their part of the one long array."""
        start = 0
        for A, B in self.constraints.rows.chunks():
            yield A, B, self.gaps[start : start + len(A)]
            start += len(A)


def soft(X: Tensor, threshold: float) -> Tensor:
    """sign(X) max(|X| - threshold, 0): the prox of the l1 norm."""
    return X - X.clamp(-threshold, threshold)


def _sum_squares(X: Tensor) -> float:
    return float(X.square().sum(dtype=torch.float64))
