"""SparseGPT: minimise ||A U - A W||_F^2 in one sweep, with H = A' A + damping I, H^-1 = R' R, R upper triangular.

Inputs go from first to last in blocks. Before a block, its share of the layer's weights is chosen over all outputs by
the largest w^2 / R_jj^2; groups of N:M choose one by one. Then, input by input, with U_j the kept part of row W_j,
the rows W_l after it are corrected inside the block at once, and for the inputs beyond it once per block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from feta.calibration.statistics import gram, ranks_of
from feta.errors import check_fields
from feta.problem import LayerProblem, LayerSolution, Needs
from feta.ranks import ALONE
from feta.solvers.columns import Columns
from feta.solvers.refit import factor
from feta.sparsity import Sparsity


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
    needs: ClassVar[Needs] = Needs("few", patterns=True, shares=True)

    damping: float = 0.01
    block: int = 128
    fit_bias: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ">= 0", "damping")
        check_fields(self, ">= 1", "block")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        (d_in, d_out), k, pattern = problem.W.shape, target.count(problem.W.numel()), target.pattern
        W = (problem.trained if self.fit_bias else problem.W).to(torch.float64, copy=True)
        H = gram(problem.rows, with_bias=len(W) > d_in).H.clone()  # it is changed below
        order, sizes = (torch.arange(d_in), [1] * d_in) if pattern is None else pattern.order(d_in)
        order = torch.cat([order, torch.arange(d_in, len(W))]).to(W.device)
        W, H = W[order], H[order][:, order]
        inputs = H.diagonal()[:d_in]
        dead = inputs <= 0
        damping = self.damping * float(inputs.mean())
        inputs.add_(damping)
        # The factor of H read backwards, turned around and inverted, is R: no second factorisation.
        solved = factor(H.flip(0, 1))
        identity = torch.eye(len(H), dtype=H.dtype, device=H.device)
        R = torch.linalg.solve_triangular(solved.L, identity, upper=False).flip(0, 1)
        unit = 1 if pattern is None else pattern.count(d_in, d_out, 1)  # weights that stay or go together
        flat = None if pattern is None else pattern.over(1)
        columns = Columns(d_out, ranks_of(problem.rows) if pattern is None else ALONE)
        keep, W = columns.top_k if flat is None else flat.mask, columns.take(W)
        for block in _blocks(sizes, self.block):
            start, stop = block[0], block[-1]
            # The groups of N:M choose one by one, what comes before them corrected already.
            choices = set(block[:-1]) if pattern is not None and pattern.share is not None else {start}
            errors = W.new_zeros(stop - start, W.shape[1])
            for row, j in enumerate(range(start, stop)):
                if j in choices:
                    end = min((i for i in choices if i > j), default=stop)
                    scores = (W[j:end] / R.diagonal()[j:end, None]).abs()
                    # A dead input's weights have no say in any output: they stay only where there is room.
                    scores[dead[j:end]] = 0
                    share = k // unit * end // d_in - k // unit * j // d_in
                    mask, first = keep(scores, share * unit), j
                kept = mask[j - first]
                errors[row] = W[j].masked_fill(kept, 0) / R[j, j]
                W[j].masked_fill_(~kept, 0)
                W[j + 1 : stop] -= torch.outer(R[j, j + 1 : stop], errors[row])
            W[stop:] -= columns.each(R[start:stop, stop:].t().matmul, errors)
        stats = {"damping": damping + solved.damping}
        return problem.solved(columns.whole(W)[order.argsort()], solved.status, stats=stats, target=target)


def _blocks(sizes: list[int], least: int) -> Iterator[list[int]]:
    """Blocks of at least so many inputs: where each group of a block starts, and where the last one ends."""
    block = [0]
    for size in sizes:
        block.append(block[-1] + size)
        if block[-1] - block[0] >= least:
            yield block
            block = block[-1:]
    if len(block) > 1:
        yield block
