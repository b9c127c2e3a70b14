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

from feta.calibration.statistics import gram
from feta.errors import ConfigError, check_range
from feta.problem import LayerProblem, LayerSolution, Needs, Status
from feta.solvers.conjugate import projected_cg
from feta.solvers.masked_refit import masked_refit
from feta.solvers.support_admm import Admm, support_admm
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Alps:
    """Find the support by ADMM with a growing penalty, then refit the weights on it.

    Formula: min ‖AU − AW‖² + r‖U − W‖²  s.t.  ‖U‖₀ ≤ k
    Cost: one pass for H; d_in² d_out for each iteration, d_in³ for every third.
    Source: Meng et al. 2024 (arXiv 2406.07831).

    ridge: r, as a share of the mean of H's diagonal; the paper's 0.01.
    rho: ADMM's first penalty, in units of the scaled H's diagonal; the paper's 0.1.
    max_iterations: of ADMM; the paper's 300.
    refit: weights on the support by "pcg", as in the paper, or "exact" by a Cholesky factor for each output.
    refit_iterations: steps of pcg; the paper's 10.
    fit_bias: whether the bias is fitted too, which the paper's layers do not have.
    """

    name: ClassVar[str] = "alps"
    needs: ClassVar[Needs] = Needs("few")

    ridge: float = 0.01
    rho: float = 0.1
    max_iterations: int = 300
    refit: Literal["pcg", "exact"] = "pcg"
    refit_iterations: int = 10
    fit_bias: bool = True

    def __post_init__(self) -> None:
        check_range("Alps", ">= 0", ridge=self.ridge, refit_iterations=self.refit_iterations)
        check_range("Alps", "> 0", rho=self.rho)
        check_range("Alps", ">= 1", max_iterations=self.max_iterations)
        if self.refit not in ("pcg", "exact"):
            raise ConfigError(f"Alps.refit must be 'pcg' or 'exact', got {self.refit!r}")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        k = target.count(problem.W.numel())
        if k == problem.W.numel():
            return LayerSolution(problem.W.clone(), problem.bias)  # W itself is the optimum
        d_in = len(problem.W)
        W = (problem.trained if self.fit_bias else problem.W).double()
        H = gram(problem.rows, with_bias=len(W) > d_in).H
        found = support_admm(
            H,
            H @ W,
            W,
            k,
            Admm(rho=self.rho, max_iterations=self.max_iterations),
            prunable=d_in,
            ridge=self.ridge,
            toward=W,
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
        still = f"support still changing after {found.iterations} iterations"
        message = still if status is Status.NOT_CONVERGED else ""
        return problem.solved(V, status, message, stats)
