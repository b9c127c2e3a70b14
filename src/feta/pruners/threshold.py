"""Hard thresholding with one t per layer; the allocation "global-magnitude" gives one t over all layers."""

from dataclasses import dataclass
from typing import ClassVar

from feta.problem import LayerProblem, LayerSolution, Needs
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Threshold:
    """Keep the largest weights of a layer and zero the others.

    Formula: U = W ⊙ 1[|W| > t]
    Cost: one selection over the weights; no data.
    Source: Han et al. 2015 (arXiv 1506.02626); section 2 of the paper.
    """

    name: ClassVar[str] = "threshold"
    needs: ClassVar[Needs] = Needs("none", patterns=True, shares=True)

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        return LayerSolution(problem.W.where(target.mask(problem.W.abs()), 0), problem.bias)
