"""Net-Trim: how epsilon is chosen for the program of solvers/net_trim_admm, which knows no sparsity.

The k largest weights of a solution are kept, and epsilon goes by what these can do. In the cascade, where A comes
from the network pruned so far, the trained weights are feasible from sqrt(1.1) ||(A W + bias - B)_Omega|| on, the
authors' epsilon there: the search for the constraint and a given epsilon keep above it.

The program does not depend on the scale of the data, but what solves it does: rho goes with the size of the weights,
the bias with that of the inputs, and Omega begins at 1e-6. So a layer of another size than those of trained networks
is seen at their scale.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from feta.calibration.scaling import Scale, scale_for
from feta.calibration.statistics import gram
from feta.errors import check_fields
from feta.problem import LayerProblem, LayerSolution, Needs, Status
from feta.solvers.net_trim_admm import Gap, NetTrimAdmm
from feta.sparsity import Sparsity, top_k_mask

CASCADE_SLACK = math.sqrt(1.1)
GOLDEN = (math.sqrt(5) - 1) / 2
SEARCH_RANGE = 16  # epsilon lies between the misfit of plain thresholding and this fraction of it

WINDOWS = ((-3, 3), (-8, -1))  # powers of two: sizes of the strongest input and of the weights as the authors' are

Trial = Callable[[float], Gap]  # epsilon -> how the weights kept there do, after some more iterations


@dataclass(frozen=True)
class NetTrim:
    """Minimise the l1 norm of the weights within a ball around the layer's outputs.

    Formula: min ‖U‖₁  s.t.  ‖(AU − B)_Ω‖_F ≤ ε,  (AU)_Ωᶜ ≤ V
    Cost: d_in² memory and d_in³ once; two passes an iteration; one array of m·d_out values.
    Source: Aghasi et al. 2018 (arXiv 1806.06457).

    iterations: of ADMM, the search included; the paper's 400.
    rho: ADMM's penalty; the paper's 100.
    search: by what ε is chosen: the least "error" after the ReLU, or the least ε that meets the "constraint".
    search_steps: values of ε tried.
    tolerance: by how much the pruned response may miss the constraints, as a share of ε.
    residual: relative residuals of ADMM above this are reported.
    epsilon: as a share of ‖B_Ω‖. None: searched; a given one is used as it is, and the sparsity comes of it.
    """

    name: ClassVar[str] = "net-trim"

    iterations: int = 400
    rho: float = 100.0
    search: Literal["error", "constraint"] = "error"
    search_steps: int = 8
    tolerance: float = 0.1
    residual: float = 0.05
    epsilon: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, ">= 1", "iterations", "search_steps")
        check_fields(self, "> 0", "rho", "tolerance", "residual", "epsilon")

    @property
    def needs(self) -> Needs:
        # The program knows no sparsity: at a given epsilon as many weights stay as its solution has.
        return Needs("many", count="exact" if self.epsilon is None else "own")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        keep = target.count(problem.W.numel())
        if self.epsilon is None and int(problem.W.count_nonzero()) <= keep:
            return LayerSolution(problem.W.clone(), problem.bias, stats={"iterations": 0})
        scale = _scale(problem)
        problem = scale.seen(problem) if any(scale) else problem
        admm = NetTrimAdmm(problem, problem.trained, self.rho)
        trained = admm.gap(problem.trained)
        floor = CASCADE_SLACK * trained.misfit if problem.cascaded else 0.0
        if self.epsilon is not None:
            epsilon = max(self.epsilon * trained.size, floor) or 1.0
        else:
            epsilon = self._search(admm, keep, trained, floor)
        admm.run(max(0, self.iterations - admm.iterations), epsilon)
        X = admm.kept(keep) if self.epsilon is None else admm.W2
        found = scale.back(self._solution(admm, X.to(problem.W.dtype), epsilon, target))
        norms = {
            name: found.stats[name] * 2.0**-scale.outputs for name in ("epsilon", "misfit", "excess", "worst_excess")
        }
        return replace(found, stats=found.stats | norms)

    def _search(self, admm: NetTrimAdmm, keep: int, trained: Gap, floor: float) -> float:
        problem, thresholded = admm.problem, admm.problem.trained.clone()
        thresholded[: len(problem.W)].masked_fill_(~top_k_mask(problem.W.abs(), keep), 0)
        # Floors for layers without a misfit: k weights do all there is to do, or no output is ever active.
        start = max(admm.gap(thresholded).misfit, 1e-6 * trained.size) or 1.0

        def trial(epsilon: float) -> Gap:
            if admm.iterations == 0:
                admm.run(self.iterations // 4, epsilon)
            admm.run(max(1, 3 * self.iterations // (8 * self.search_steps)), epsilon)
            gap = admm.gap(admm.kept(keep))
            problem.report("search", epsilon=epsilon, misfit=gap.misfit, error=gap.error)
            return gap

        if self.search == "error":
            return least_error(trial, start / SEARCH_RANGE, start, self.search_steps)
        # Half the tolerance, so that what the last iterations change does not break it.
        return least_feasible(trial, max(start, floor), floor, self.search_steps, self.tolerance / 2)

    def _solution(self, admm: NetTrimAdmm, X: Tensor, epsilon: float, target: Sparsity) -> LayerSolution:
        """U and its bias out of X, with what became of the constraints."""
        gap, status, message = admm.gap(X), admm.status, ""
        program, kept = (int(V[: admm.d_in].count_nonzero()) for V in (admm.W2, X))
        if not gap.met(epsilon, self.tolerance):
            status = Status.INFEASIBLE
            shares = f"misfit {gap.misfit / epsilon:.2f} epsilon, excess {gap.excess / epsilon:.2f} epsilon"
            message = f"{kept} of the program's {program} weights: {shares}"
        elif max(admm.primal, admm.dual) > self.residual:
            status = Status.NOT_CONVERGED
            message = f"residuals {admm.primal:.2g}, {admm.dual:.2g} after {admm.iterations} iterations"
        relative = epsilon / gap.size if gap.size > 0 else 0.0
        stats = {"epsilon": epsilon, "relative_epsilon": relative, "iterations": admm.iterations}
        stats |= {"misfit": gap.misfit, "excess": gap.excess, "worst_excess": gap.worst}
        stats |= {"primal_residual": admm.primal, "dual_residual": admm.dual}
        stats |= {"program_nonzeros": program, "nonzeros": kept}
        return admm.problem.solved(X, status, message, stats, target if self.epsilon is None else None)


def _scale(problem: LayerProblem) -> Scale:
    sums = gram(problem.rows, with_bias=False)
    inputs = math.sqrt(max(0.0, float(sums.H.diagonal().max()) / sums.rows))
    weights = float(problem.W.double().square().mean().sqrt())
    bias = 0.0 if problem.bias is None else float(problem.bias.abs().max())
    return scale_for(problem, inputs, weights, max(inputs * weights, bias), WINDOWS)


def least_error(trial: Trial, low: float, high: float, steps: int) -> float:
    """Golden section on log epsilon; the best of all that were tried."""
    tried: dict[float, float] = {}
    inner = math.log(low) + (1 - GOLDEN) * (math.log(high) - math.log(low))
    for _ in range(steps):
        tried[inner] = trial(math.exp(inner)).error
        best = min(tried, key=lambda x: tried[x])
        # The bracket is the best point's neighbours; the next point lies in the larger of the two gaps.
        left = max((x for x in tried if x < best), default=math.log(low))
        right = min((x for x in tried if x > best), default=math.log(high))
        inner = best + (1 - GOLDEN) * max(left - best, right - best, key=abs)
    return math.exp(best)


def least_feasible(trial: Trial, start: float, floor: float, steps: int, tolerance: float) -> float:
    """Bisection on log epsilon: up to the misfit found where the constraints are missed, down where met."""
    low, high, epsilon = floor, math.inf, start
    for _ in range(steps):
        gap = trial(epsilon)
        if gap.met(epsilon, tolerance):
            high = epsilon
            epsilon = math.sqrt(low * high) if low > high / 4 else high / 2
        else:
            low = epsilon
            epsilon = max(gap.misfit, 1.1 * low) if math.isinf(high) else math.sqrt(low * high)
    return epsilon if math.isinf(high) else high
