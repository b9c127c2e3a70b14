"""The dense least-squares refit of a layer on its Gram matrix.

    V = argmin ||A~ V - T||_F^2 + r ||V - W||_F^2  =  (H + r I)^-1 (C + r W)

The ridge pulls towards the trained weights, not towards zero: inputs the data says nothing about
keep what training gave them.
"""

from __future__ import annotations

from feta.calibration.statistics import cross, gram
from feta.problem import LayerProblem, LayerSolution
from feta.solvers.cholesky import factor


def refit_dense(problem: LayerProblem, ridge: float = 1e-4) -> LayerSolution:
    """The dense layer that best gives the original outputs from the inputs it now receives.

    ridge: r, as a share of the mean of H's diagonal.
    """
    with_bias = problem.bias is not None
    solved = factor(gram(problem.rows, with_bias=with_bias).H, ridge)
    C = cross(problem.rows, lambda A, B: B, with_bias=with_bias)
    return problem.solved(solved.solve(C + solved.damping * problem.trained.double()), solved.status)
