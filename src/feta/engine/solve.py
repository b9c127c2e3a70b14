"""A method's answer for one layer: asked for at an ordinary scale, and never empty without a word."""

from dataclasses import replace

from feta.calibration.scaling import Scale, extreme_scale
from feta.problem import LayerProblem, LayerSolution, Pruner, Status
from feta.sparsity import Sparsity


def solve(pruner: Pruner, problem: LayerProblem, target: Sparsity) -> LayerSolution:
    """What the method makes of the layer."""
    scale = Scale() if problem.stream is None or pruner.needs.passes == "none" else extreme_scale(problem)
    if scale == Scale():
        return pruner.prune(problem, target)
    return scale.back(pruner.prune(scale.seen(problem), target))


def emptied(solution: LayerSolution, problem: LayerProblem, target: Sparsity) -> LayerSolution:
    """The solution, with a word to say so where nothing is left though weights may stay."""
    keep = target.count(problem.W.numel())
    if keep == 0 or not bool(problem.W.any()) or bool(solution.U.any()) or solution.status is not Status.OK:
        return solution
    said = f"no weight is left although {keep} may stay; prune this layer less, or by another method"
    return replace(solution, status=Status.POOR, message=said)
