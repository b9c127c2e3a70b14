"""Layer-wise optimal brain surgeon: minimise 1/2 tr (U - W)' H (U - W) with H = A~' A~ / m and a~ = (a, 1).

Weights leave one by one, each with its step on its output's column (bias included), and removed weights are set back
to zero after each step; H^-1 is never updated. With Q the order in which a column's weights leave, the step sizes c
solve a triangular system, in blocks for all outputs at once:

    tril(H^-1[Q, Q]) c = w_Q        U = W - H^-1[:, Q] c off Q, 0 on Q
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feta.calibration.statistics import gram
from feta.errors import check_fields
from feta.problem import LayerProblem, LayerSolution, Needs
from feta.solvers.refit import factor
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Lobs:
    """Remove weights by a sensitivity ranked once; after each, its output's other weights make up for it.

    Formula: δw = −(w_q / [H⁻¹]_qq) H⁻¹[:, q], in rising order of w_q² / (2 [H⁻¹]_qq)
    Cost: one pass for H, one factor of it; d_in² for each output.
    Source: Dong et al. 2017 (arXiv 1705.07565).

    damping: added to the diagonal of H, absolute; the paper starts its recursion for H^-1 at 1e6 I.
    """

    name: ClassVar[str] = "lobs"
    needs: ClassVar[Needs] = Needs("few", patterns=True, shares=True)

    damping: float = 1e-6

    def __post_init__(self) -> None:
        check_fields(self, ">= 0", "damping")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        W, k = problem.W, target.count(problem.W.numel())
        found = gram(problem.rows, with_bias=problem.bias is not None)
        H = found.H / found.rows
        solved = factor(H, self.damping / (float(H.diagonal().mean()) or 1.0))
        inverse = solved.inverse()
        sensitivity = W.double().square() / inverse.diagonal()[: len(W), None] / 2
        stays = None if target.pattern is None else target.mask(sensitivity.sqrt())
        V = remove(inverse, problem.trained.double(), removal_turns(sensitivity, k, stays))
        return problem.solved(V, solved.status, stats={"damping": solved.damping}, target=target)


def removal_turns(sensitivity: Tensor, k: int, stays: Tensor | None = None) -> Tensor:
    """When each weight leaves: 0, 1, ... over the layer, or -1 for the k that stay; of equal ones the last first.

    stays: the mask of a pattern's k weights; None: the most sensitive.
    """
    if stays is not None:
        sensitivity = sensitivity.where(~stays, torch.inf)
    leaving = sensitivity.reshape(-1).argsort(descending=True, stable=True)[k:].flip(0)
    turn = torch.full((sensitivity.numel(),), -1, device=leaving.device)
    turn[leaving] = torch.arange(len(leaving), device=turn.device)
    return turn.reshape(sensitivity.shape)


def remove(inverse: Tensor, whole: Tensor, turn: Tensor, block: int | None = None) -> Tensor:
    """The layer (d_in [+ 1], d_out), bias row included, after every weight has left at its turn (d_in, d_out).

    block: steps at once; the systems of a block are gathered (d_out, block, block), at most 256 MiB of them.
    """
    d_in, d_out = turn.shape
    leaves = turn >= 0
    order = turn.where(leaves, turn.numel()).argsort(dim=0)  # (d_in, d_out); those that stay come last
    columns = torch.arange(d_out, device=turn.device)
    V = whole.clone()
    block = block or max(1, min(max(32, d_in // 16), math.isqrt(2**25 // d_out)))
    for q in order[: int(leaves.sum(0).max())].split(block):  # (steps, d_out)
        systems = inverse[q.t()[:, :, None], q.t()[:, None, :]]  # (d_out, steps, steps)
        c = torch.linalg.solve_triangular(systems, V[q, columns].t()[:, :, None], upper=False)[:, :, 0].t()
        steps = torch.zeros_like(V)
        steps[q, columns] = c.where(leaves[q, columns], 0)
        V -= inverse @ steps
    V[:d_in].masked_fill_(leaves, 0)
    return V
