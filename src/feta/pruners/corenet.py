"""Corenet: weights drawn by their sensitivity, n ~ Multinomial(N, q) with q_j = s_j / sum s, so that E[u] = w.

    s_j = max over a in S of   a_j |w_j| / sum_k a_k |w_k|    in [0, 1]

for each output and each sign of its weights, a part (so that no sum cancels). The sensitivity s_j is the largest
share that a weight has in what its output receives, over a small sample S of the inputs.

The paper's number of draws for a part, N = c sum s, is a bound far too large to be of use. Here c is such that as
many distinct draws are expected as weights are to be kept. What the draw leaves over or short is settled by
sensitivity: the least sensitive draws are dropped, or the most sensitive other weights join as they were trained.
"""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from feta.calibration.stream import sample_rows
from feta.errors import check_fields
from feta.problem import Activation, LayerProblem, LayerSolution, Needs
from feta.sparsity import Sparsity, top_k_mask

MOST_DRAWS = 1e12  # of one part; beyond it the weights are as good as exact


@dataclass(frozen=True)
class Corenet:
    """Draw weights at random by their importance and rescale them to be unbiased.

    Formula: u_j = n_j·w_j / (N·q_j),  q_j ∝ max over x ∈ S of w_j a_j(x) / Σ_k w_k a_k(x)
    Cost: two passes for the sample; |S| d_in d_out for the sensitivities.
    Source: Baykal et al. 2018 (arXiv 1804.05345).

    sample_size: inputs in S; sensitivities hardly change beyond a few hundred.
    neuron_removal: whether outputs that are silent on all of S are removed first (Corenet+).
    seed: of the sample and the draws.
    """

    name: ClassVar[str] = "corenet"
    needs: ClassVar[Needs] = Needs("few", seed=True)

    sample_size: int = 256
    neuron_removal: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, ">= 1", "sample_size")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        W, keep = problem.W, target.count(problem.W.numel())
        if int(W.count_nonzero()) <= keep:
            return LayerSolution(W.clone(), problem.bias)
        A, B = sample_rows(problem.rows, self.sample_size, torch.Generator().manual_seed(self.seed))
        removed = (B <= 0).all(0) & (self.neuron_removal and problem.activation is Activation.RELU)
        s = sensitivities(A, W).double().where(~removed, 0)
        drawn, draws = _draw(W, s, keep, np.random.default_rng(self.seed))
        mask = top_k_mask(ranking(W, s, drawn != 0, removed), keep)
        U = drawn.where(drawn != 0, W).where(mask, 0)
        bias = problem.bias
        if bias is not None:
            bias = bias.where(~removed | U.any(0), bias.clamp(max=0))
        stats = {"sample": len(A), "draws": draws, "drawn": int(drawn.count_nonzero())}
        stats |= {"removed_neurons": int(removed.sum()), "without_sensitivity": int(((s == 0) & (W != 0)).sum())}
        return LayerSolution(U, bias, stats=stats)


def sensitivities(A: Tensor, W: Tensor) -> Tensor:
    """s (d_in, d_out) over the rows a of A; a row of both signs counts as two, max(a, 0) and max(-a, 0)."""
    result, shares = torch.zeros_like(W), torch.empty_like(W)
    inputs = [X for X in (A.clamp(min=0), A.neg().clamp_(min=0)) if bool(X.any())]
    for P, X in product((W.clamp(min=0), W.neg().clamp_(min=0)), inputs):
        totals = X @ P  # (n, d_out)
        # Below the normal range a reciprocal overflows; an output that receives so little has no shares.
        reciprocals = totals.reciprocal().where(totals >= torch.finfo(totals.dtype).tiny, 0)
        largest = torch.zeros_like(P)
        for a, r in zip(X, reciprocals, strict=True):
            torch.maximum(largest, torch.outer(a, r, out=shares), out=largest)
        # A weight of the other sign may have met an infinite ratio: its zero times that is no number.
        torch.maximum(result, largest.mul_(P).clamp_(max=1).where(P > 0, 0), out=result)
    return result


def sample_part(w: Tensor, q: Tensor, N: Tensor, generator: np.random.Generator) -> Tensor:
    """N draws with replacement from each part, a row: u = n w / (N q), with E[u] = w where q > 0.

    w and q are (parts, d_in), q sums to 1 in each row or is 0 in all of it; N (parts,) is integer.
    """
    q = q.double()
    q = q / q.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
    # numpy gives what rounding leaves of a row to its last entry: a column of its own keeps it from the weights.
    shares = np.pad(q.cpu().numpy(), ((0, 0), (0, 1)))
    counts = torch.from_numpy(generator.multinomial(N.cpu().numpy(), shares)[:, :-1]).to(w.device)
    expected = q * N[:, None]
    return (w * counts / expected).where(expected > 0, 0).to(w.dtype)


def draws_per_part(q: Tensor, totals: Tensor, keep: int) -> Tensor:
    """N = c sum s (parts,) with c such that keep distinct weights are expected; at least one a part."""
    logs = torch.log1p(-q.clamp(max=1 - 1e-15))  # log(1 - q)
    low, high = 0.0, MOST_DRAWS
    for _ in range(100):
        c = (low * high) ** 0.5 if low > 0 else min(1.0, high / 2)
        expected = -float(torch.expm1(logs * (c * totals)[:, None]).sum())
        low, high = (c, high) if expected < keep else (low, c)
        if high < low * 1.0001:
            break
    return (high * totals).clamp(max=MOST_DRAWS).round().clamp(min=1).long()


def ranking(W: Tensor, s: Tensor, drawn: Tensor, removed: Tensor) -> Tensor:
    """Who stays: draws by sensitivity, then other weights by it, then by size; removed neurons come last."""
    size = W.double().abs()
    # By size in [0, 1], by sensitivity in (1, 2].
    scores = (size / size.max()).where(s == 0, 1 + s).where(~drawn, 2 + s)
    return scores.where(~removed, scores - 1).where(W != 0, -2)


def _draw(W: Tensor, s: Tensor, keep: int, generator: np.random.Generator) -> tuple[Tensor, int]:
    """The sampled layer (zero where not drawn), and the number of draws."""
    if int(s.count_nonzero()) <= keep:
        return W.where(s > 0, 0), 0  # there is room for every weight that has a say: nothing to estimate
    parts = torch.cat([s.where(W > 0, 0).t(), s.where(W < 0, 0).t()])  # (2 d_out, d_in)
    totals = parts.sum(1)
    q = parts / totals.where(totals > 0, 1)[:, None]
    N = draws_per_part(q, totals, keep)
    positive, negative = sample_part(W.t().repeat(2, 1), q, N, generator).chunk(2)
    return (positive + negative).t().contiguous(), int(N[totals > 0].sum())
