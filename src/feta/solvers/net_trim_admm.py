"""Net-Trim's convex program on a stream of rows, by ADMM with one array as long as the data.

    minimise ||U||_1   subject to   ||(A U - B)_Omega||_F <= epsilon,   (A U)_Omega^c <= V

U (d_in [+ 1], d_out) has the bias as its last row, outside the norm. Omega = {B > 1e-6}, all entries for a linear
layer; V is the trained response in the cascade, and 0 elsewhere. ADMM splits W1 = A W3 (m, d_out), in the set C of
the constraints, and the sparse W2 = W3. With Z = A W3 - U1 and Q = W3 - U2 the same iterates come from

    D = P_C(Z) - Z        E = soft(Q, 1 / rho) - Q        S = (A'A / s^2 + I)^-1 (A'D / s^2 + E)
    Z <- A (W3 + 2 S) - D        Q <- (W3 + 2 S) - E        W3 <- W3 + S

With T = B on Omega and V elsewhere, P_C needs only Z - T and ||(Z - T)_Omega||: D and Z - T take turns in one array
(m, d_out), Net-Trim's known price. A and B come chunk by chunk, twice an iteration.
s = 0.3 sqrt(max A'A) is the authors' scaling of the data, here just the weight 1 / s^2 of the first split.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.statistics import gram
from feta.problem import Activation, LayerProblem
from feta.solvers.refit import factor
from feta.sparsity import top_k_mask

OMEGA_THRESHOLD = 1e-6  # the authors' "positive"
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Gap:
    """How a response A U lies to the constraints."""

    misfit: float  # ||(A U - B)_Omega||_F, to be <= epsilon
    excess: float  # ||max(A U - V, 0)_Omega^c||_F, to be 0
    error: float  # ||rho(A U) - B||_F
    size: float  # ||B_Omega||_F
    worst: float = 0.0  # the largest entry of the excess

    def met(self, epsilon: float, tolerance: float) -> bool:
        """Both constraints in the norm of the ball, up to a share of its radius."""
        return self.misfit <= (1 + tolerance) * epsilon and self.excess <= tolerance * epsilon


class NetTrimAdmm:
    """The state of the iteration, begun at W3; `run` goes on from where it stands, with an epsilon of its own."""

    def __init__(self, problem: LayerProblem, W3: Tensor, rho: float) -> None:
        self.problem, self.rho, self.d_in = problem, rho, len(problem.W)
        sums = gram(problem.rows, with_bias=problem.bias is not None)
        # Inputs that are all dead leave nothing to scale by.
        self.weight = 1 / (0.09 * float(sums.H.diagonal().max()) or 1.0)  # 1 / s^2
        solved = factor(self.weight * sums.H + torch.eye(len(sums.H), dtype=sums.H.dtype, device=sums.H.device))
        # Well conditioned, and one product is twice as fast as two triangular solves.
        self.inverse, self.status = solved.inverse(), solved.status
        self.gaps = W3.new_zeros(sums.rows, W3.shape[1])  # Z - T, or D
        self.W3 = W3.to(torch.float64, copy=True)
        self.Q = self.W3.clone()
        self.iterations = 0
        self.primal = math.inf  # ||W2 - W3|| / ||W3||
        self.dual = math.inf  # ||change of W3|| / ||U2||
        self.distance = self._respond(self.W3)  # ||(Z - T)_Omega||

    @property
    def W2(self) -> Tensor:
        """The sparse copy; the bias row is not thresholded."""
        W2 = self.Q - self.Q.clamp(-1 / self.rho, 1 / self.rho)
        W2[self.d_in :] = self.Q[self.d_in :]
        return W2

    def kept(self, k: int) -> Tensor:
        """The k largest weights of W2; where W2 has fewer, the next ones in line, as they are in W3."""
        X, mask = self.W2, top_k_mask(self.Q[: self.d_in].abs(), k)
        U = X[: self.d_in]
        U.copy_(U.where(U != 0, self.W3[: self.d_in]).where(mask, 0))
        return X

    def gap(self, X: Tensor) -> Gap:
        """One pass: does the response of the weights X meet the constraints?"""
        # Added up on the device: a GPU must not wait for each chunk's numbers.
        squares = torch.zeros(4, dtype=torch.float64, device=X.device)
        worst = squares[0].clone()
        for A, B in self.problem.rows.chunks():
            omega, R = self._omega(B), self.problem.fit.outputs(X, A)
            error = self.problem.activation(R) - B
            R -= self._targets(A, B, omega)
            inside = R * omega
            over = R.sub_(inside).clamp_(min=0)
            # Norms in the chunk's own precision, so that no copy in float64 is made.
            norms = [torch.linalg.vector_norm(part) for part in (inside, over, error, B * omega)]
            squares += torch.stack(norms).double().square()
            worst = torch.maximum(worst, over.max())
        misfit, excess, missed, size = squares.sqrt().tolist()
        return Gap(misfit, excess, missed, size, float(worst))

    def run(self, iterations: int, epsilon: float) -> None:
        for _ in range(iterations):
            W2 = self.W2
            E = W2 - self.Q
            S = self.inverse @ self._pull(epsilon).mul_(self.weight).add_(E)
            X = self.W3.add(S, alpha=2)
            self.Q = X - E
            self.W3 += S
            self.distance = self._respond(X)
            self.iterations += 1
            self.primal = float((W2 - self.W3).norm()) / max(float(self.W3.norm()), TINY)
            self.dual = float(S.norm()) / max(float((self.W3 - self.Q).norm()), TINY)

    def _omega(self, B: Tensor) -> Tensor:
        """1 on Omega and 0 elsewhere: on a CPU products with numbers are ten times as fast as masks, and exact."""
        if self.problem.activation is Activation.LINEAR:
            return torch.ones_like(B)
        return torch.gt(B, OMEGA_THRESHOLD, out=torch.empty_like(B))

    def _targets(self, A: Tensor, B: Tensor, omega: Tensor) -> Tensor:
        """T: B on Omega, V elsewhere."""
        T = B * omega
        if self.problem.cascaded:
            V = self.problem.fit.outputs(self.problem.trained, A)
            T += V.sub_(V * omega)
        return T

    def _pull(self, epsilon: float) -> Tensor:
        """Turn Z - T into D = P_C(Z) - Z, in place; A'D in float64."""
        # On Omega D = (epsilon / distance - 1)(Z - T), or 0 inside the ball; elsewhere D = -max(Z - T, 0).
        inward = min(1.0, epsilon / self.distance) - 1 if self.distance > 0 else 0.0
        total = torch.zeros_like(self.W3.t())  # transposed: D'A is faster than A'D where d_out < d_in
        for A, B, D in self._chunks():
            inside = D * self._omega(B)
            D.sub_(inside).clamp_(min=0)
            torch.sub(inside.mul_(inward), D, out=D)
            total[:, : self.d_in] += D.t() @ A
            total[:, self.d_in :] += D.sum(0)[:, None]
        return total.t()

    def _respond(self, X: Tensor) -> float:
        """Turn D into Z - T with Z = A X - D, in place; its norm on Omega."""
        X = X.to(self.gaps.dtype)
        squares = torch.zeros((), dtype=torch.float64, device=X.device)
        for A, B, R in self._chunks():
            R.addmm_(A, X[: self.d_in], beta=-1)
            if self.problem.bias is not None:
                R += X[-1]
            omega = self._omega(B)
            R -= self._targets(A, B, omega)
            squares += torch.linalg.vector_norm(omega.mul_(R)).double().square()
        return math.sqrt(float(squares))

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Chunks of A and B beside their part of the one long array."""
        start = 0
        for A, B in self.problem.rows.chunks():
            yield A, B, self.gaps[start : start + len(A)]
            start += len(A)
