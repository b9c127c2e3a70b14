"""Hard thresholding with one t per layer; the allocation "global-magnitude" gives one t over all layers."""

from dataclasses import dataclass
from typing import ClassVar

from feta.problem import LayerProblem, LayerSolution, Needs
from feta.sparsity import Sparsity, top_k_mask


@dataclass(frozen=True)
class Threshold:
    """Keep the largest weights of a layer and zero the others.

    Formula: U = W ⊙ 1[|W| > t]
    Cost: one selection over the weights; no data.
    Source: Han et al. 2015 (arXiv 1506.02626); section 2 of the paper.
    """

    name: ClassVar[str] = "threshold"
    needs: ClassVar[Needs] = Needs("none")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        mask = top_k_mask(problem.W.abs(), target.count(problem.W.numel()))
        return LayerSolution(problem.W.where(mask, 0), problem.bias)
