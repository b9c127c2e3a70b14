"""SparseGPT: minimise ||A U - A W||_F^2 in one sweep, with H = A' A + damping I, H^-1 = R' R, R upper triangular.

Inputs go from first to last in blocks. Before a block, its share of the layer's weights is chosen over all outputs by
the largest w^2 / R_jj^2. Then, input by input, with U_j the kept part of row W_j, the rows W_l after it are corrected
inside the block at once, and for the inputs beyond it once per block.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from feta.calibration.statistics import gram
from feta.errors import check_range
from feta.problem import LayerProblem, LayerSolution, Needs
from feta.solvers.refit import factor
from feta.sparsity import Sparsity, top_k_mask


@dataclass(frozen=True)
class SparseGpt:
    """Sweep over the inputs in blocks; weights to come make up for those removed.

    Formula: W_l ← W_l − (R_jl / R_jj)(W_j − U_j), l > j, with (AᵀA + λI)⁻¹ = RᵀR
    Cost: one pass for H, one factor, d_in² d_out.
    Source: Frantar and Alistarh 2023 (arXiv 2301.00774).

    damping: added to H's diagonal, as a share of its mean; the paper's 0.01.
    block: inputs between two choices of what to keep; the paper's 128.
    fit_bias: whether the bias is fitted, as a last input that is never pruned; the paper leaves it as it is.
    """

    name: ClassVar[str] = "sparsegpt"
    needs: ClassVar[Needs] = Needs("few")

    damping: float = 0.01
    block: int = 128
    fit_bias: bool = False

    def __post_init__(self) -> None:
        check_range("SparseGpt", ">= 0", damping=self.damping)
        check_range("SparseGpt", ">= 1", block=self.block)

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        d_in, k = len(problem.W), target.count(problem.W.numel())
        W = (problem.trained if self.fit_bias else problem.W).to(torch.float64, copy=True)
        H = gram(problem.rows, with_bias=len(W) > d_in).H.clone()  # it is changed below
        inputs = H.diagonal()[:d_in]
        dead = inputs <= 0
        damping = self.damping * float(inputs.mean())
        inputs.add_(damping)
        # The factor of H read backwards, turned around and inverted, is R: no second factorisation.
        solved = factor(H.flip(0, 1))
        identity = torch.eye(len(H), dtype=H.dtype, device=H.device)
        R = torch.linalg.solve_triangular(solved.L, identity, upper=False).flip(0, 1)
        for start in range(0, d_in, self.block):
            stop = min(start + self.block, d_in)
            block = slice(start, stop)
            scores = (W[block] / R.diagonal()[block, None]).square()
            # A dead input's weights have no say in any output: they stay only where there is room.
            scores[dead[block]] = 0
            share = k * stop // d_in - k * start // d_in
            mask, errors = top_k_mask(scores, share), torch.zeros_like(scores)
            for row, j in enumerate(range(start, stop)):
                errors[row] = W[j].masked_fill(mask[row], 0) / R[j, j]
                W[j].masked_fill_(~mask[row], 0)
                W[j + 1 : stop] -= torch.outer(R[j, j + 1 : stop], errors[row])
            W[stop:] -= R[block, stop:].t() @ errors
        return problem.solved(W, solved.status, stats={"damping": damping + solved.damping}, keep=k)
