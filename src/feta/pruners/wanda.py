"""Wanda: keep the weights that carry the most signal, |w_ij| ||a_i||_2 with a_i the i-th column of A (m, d_in)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from feta.calibration.statistics import column_norms
from feta.problem import LayerProblem, LayerSolution, Needs
from feta.sparsity import Sparsity, top_k_mask


@dataclass(frozen=True)
class Wanda:
    """Keep the largest |weight| x |input| and zero the others.

    Formula: U = W ⊙ 1[|w_ij|·‖a_i‖₂ > t_j]
    Cost: one pass for the norms, one sort over the weights.
    Source: Sun et al. 2023 (arXiv 2306.11695).

    scope: within what weights compete: their "output", as in the paper, or the whole "layer". A pattern
        says it by itself.
    """

    name: ClassVar[str] = "wanda"
    needs: ClassVar[Needs] = Needs("few", patterns=True, shares=True)

    scope: Literal["output", "layer"] = "output"

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        W, k = problem.W, target.count(problem.W.numel())
        scores = W.double().abs() * column_norms(problem.rows)[:, None]
        if target.pattern is None:
            scores = scores.where(W != 0, -1)  # of inputs that say nothing, weights go before zeros
        if self.scope == "layer" or target.pattern is not None:
            return LayerSolution(W.where(target.mask(scores), 0), problem.bias)
        every, rest = divmod(k, W.shape[1])  # what is left over goes to the first outputs: the layer has exactly k
        best_first = scores.t().argsort(dim=1, descending=True, stable=True)  # (d_out, d_in), equal ones by index
        mask = torch.zeros_like(best_first, dtype=torch.bool)
        mask.scatter_(1, best_first[:, :every], True)
        mask[:rest].scatter_(1, best_first[:rest, every : every + 1], True)
        # An output with fewer weights than its share leaves the rest to those that carry most in the others.
        empty = mask.t() & (W == 0)
        mask = (mask.t() & ~empty) | top_k_mask(scores.where((W != 0) & ~mask.t(), -1), int(empty.sum()))
        return LayerSolution(W.where(mask, 0), problem.bias)
