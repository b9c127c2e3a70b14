"""ALPS on H = A' A + r I; a fitted bias is one more input that is always 1, neither pruned nor under the ridge."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from feta.calibration.statistics import gram, ranks_of
from feta.errors import check_fields
from feta.problem import LayerProblem, LayerSolution, Needs, Status
from feta.solvers.columns import Columns
from feta.solvers.refit import masked_refit, projected_cg
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
    needs: ClassVar[Needs] = Needs("few", patterns=True, shares=True)

    ridge: float = 0.01
    rho: float = 0.1
    max_iterations: int = 300
    refit: Literal["pcg", "exact"] = "pcg"
    refit_iterations: int = 10
    fit_bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self, ">= 0", "ridge", "refit_iterations")
        check_fields(self, "> 0", "rho")
        check_fields(self, ">= 1", "max_iterations")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        k = target.count(problem.W.numel())
        if k == problem.W.numel():
            return LayerSolution(problem.W.clone(), problem.bias)  # W itself is the optimum
        d_in, W = len(problem.W), (problem.trained if self.fit_bias else problem.W).double()
        H = gram(problem.rows, with_bias=len(W) > d_in).H.clone()  # it is changed below
        admm = Admm(self.rho, max_iterations=self.max_iterations)
        search = partial(support_admm, prunable=d_in, watch=partial(problem.report, "admm"), pattern=target.pattern)
        ranks = ranks_of(problem.rows)
        found = search(H, H @ W, W, k, admm, ridge=self.ridge, ranks=ranks)
        status, stats = found.status, {"iterations": found.iterations, "rho": found.rho, "damping": found.damping}
        if self.refit == "pcg":
            H.diagonal()[:d_in] += self.ridge * H.diagonal()[:d_in].mean()
            share = Columns(W.shape[1], ranks)
            C, D, mask = (share.take(part) for part in (H @ W, found.D, found.mask))
            product = partial(share.each, H.matmul)
            V = projected_cg(product, H.diagonal(), C, D, mask, self.refit_iterations, share.sums)
            V = share.whole(V)
            # Nothing is known of a dead input where there is no ridge: the weights kept there stay as they were.
            V = V.where((H.diagonal()[:, None] > 0) | ~found.mask, W)
        else:
            refit = masked_refit(H, H @ W, found.mask[:d_in], ridge=self.ridge, toward=W, ranks=ranks)
            V, stats["refit_damping"] = refit.V, refit.damping
            status = Status.DAMPED if refit.status is Status.DAMPED else status
        message = f"support still changing after {found.iterations} iterations"
        return problem.solved(V, status, message if status is Status.NOT_CONVERGED else "", stats, target)
