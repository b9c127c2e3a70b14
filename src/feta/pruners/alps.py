"""ALPS: l0-constrained least squares by ADMM, then conjugate gradients on the support.

    minimise  ||A U - A W||_F^2 + r ||U - W||_F^2    subject to    ||U||_0 <= k over the layer

    H = A' A + r I,    C = H W,    r = ridge * mean diagonal of A' A

The support comes from ADMM on H scaled to a unit diagonal, with a penalty that grows from 0.1 every third
iteration by 1.3, 1.2 or 1.1, by how much of the support has changed (solvers/support_admm). The weights on
it come from ten steps of conjugate gradients for all outputs at once, preconditioned by the diagonal of H
and projected to the support, each output with steps of its own; or, with refit="exact", from a Cholesky
factor per output.

The paper's layers have no bias. Here it is one more input that is always 1, neither pruned nor under the
ridge, for the sake of a strong rival: fitting it lowers the error by a fifth where inputs are not centred.
With fit_bias=False it is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from feta.calibration.statistics import gram
from feta.errors import ConfigError
from feta.problem import LayerProblem, LayerSolution, Status
from feta.solvers.conjugate import projected_cg
from feta.solvers.masked_refit import masked_refit
from feta.solvers.refit import split_bias_row, with_bias_row
from feta.solvers.support_admm import support_admm
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Alps:
    """Find the support by ADMM with a growing penalty, then refit the weights on it.

    Formula: min ‖AU − AW‖² + r‖U − W‖²  s.t.  ‖U‖₀ ≤ k
    Cost: one pass for H; d_in² d_out for each iteration, d_in³ for every third.
    Source: Meng et al. 2024 (arXiv 2406.07831).
    """

    ridge: float = 0.01  # of the mean of H's diagonal
    rho: float = 0.1
    max_iterations: int = 300
    refit: Literal["pcg", "exact"] = "pcg"
    refit_iterations: int = 10
    fit_bias: bool = True

    name: ClassVar[str] = "alps"
    passes: ClassVar[str] = "few"

    def __post_init__(self) -> None:
        if not self.ridge >= 0:
            raise ConfigError(f"Alps.ridge must be >= 0, got {self.ridge}")
        if not self.rho > 0:
            raise ConfigError(f"Alps.rho must be > 0, got {self.rho}")
        if self.max_iterations < 1:
            raise ConfigError(f"Alps.max_iterations must be >= 1, got {self.max_iterations}")
        if self.refit not in ("pcg", "exact"):
            raise ConfigError(f"Alps.refit must be 'pcg' or 'exact', got {self.refit!r}")
        if self.refit_iterations < 0:
            raise ConfigError(f"Alps.refit_iterations must be >= 0, got {self.refit_iterations}")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        k = target.count(problem.W.numel())
        if k == problem.W.numel():
            return LayerSolution(problem.W.clone(), problem.bias)  # W itself is the optimum
        d_in = len(problem.W)
        has_bias = self.fit_bias and problem.bias is not None
        W = with_bias_row(problem.W, problem.bias if has_bias else None).double()
        H = gram(problem.rows, with_bias=has_bias).H
        prunable = torch.arange(len(H), device=H.device) < d_in
        found = support_admm(
            H,
            H @ W,
            W,
            k,
            penalised_rows=prunable,
            ridge=self.ridge,
            toward=W,
            rho=self.rho,
            max_iterations=self.max_iterations,
            watch=lambda i, rho, changed: problem.report("admm", iteration=i, rho=rho, changed=changed),
        )
        stats = {"iterations": found.iterations, "rho": found.rho, "damping": found.damping}
        status = found.status
        if self.refit == "pcg":
            H.diagonal()[:d_in] += self.ridge * H.diagonal()[:d_in].mean()
            V = projected_cg(lambda D: H @ D, H.diagonal(), H @ W, found.D, found.mask, self.refit_iterations)
        else:
            refit = masked_refit(H, H @ W, found.mask[:d_in], ridge=self.ridge, toward=W)
            V, stats["refit_damping"] = refit.V, refit.damping
            status = Status.DAMPED if refit.status is Status.DAMPED else status
        U, bias = split_bias_row(V.to(problem.W.dtype), has_bias)
        still = f"support still changing after {found.iterations} iterations"
        message = still if status is Status.NOT_CONVERGED else ""
        return LayerSolution(U, bias if has_bias else problem.bias, status, message, stats)
