"""Empirical sensitivities: the largest share a weight has in what its output receives, over a sample.

    s_jo = max over a in S of   a_j |w_jo| / sum_k a_k |w_ko|,    k over the weights of the sign of w_jo

A (n, d_in) holds the sample, W (d_in, d_out) the weights, s (d_in, d_out) lies in [0, 1]. Positive and negative
weights of an output are two parts, so that no sum cancels; for the same reason an input with
entries of both signs counts as two samples, max(a, 0) and max(-a, 0).
"""

import torch
from torch import Tensor


def sensitivities(A: Tensor, W: Tensor) -> Tensor:
    """s for every weight; 0 where no sample reaches it."""
    result = torch.zeros_like(W)
    for part in (W.clamp(min=0), W.neg().clamp_(min=0)):
        for inputs in (A.clamp(min=0), A.neg().clamp_(min=0)):
            if bool((inputs > 0).any()):
                torch.maximum(result, _largest_shares(inputs, part), out=result)
    return result


def _largest_shares(A: Tensor, P: Tensor) -> Tensor:
    """max over rows a of a_j p_jo / (a' P)_o, for A >= 0 and P >= 0."""
    totals = A @ P  # (n, d_out)
    # Below the normal range a reciprocal overflows; an output that receives so little has no shares.
    reciprocals = totals.reciprocal().where(totals >= torch.finfo(totals.dtype).tiny, 0)
    largest, shares = torch.zeros_like(P), torch.empty_like(P)
    for a, r in zip(A, reciprocals, strict=True):
        torch.maximum(largest, torch.outer(a, r, out=shares), out=largest)
    # A weight of the other sign may have met an infinite ratio: its zero times that is no number.
    return largest.mul_(P).clamp_(max=1).where(P > 0, 0)
