"""Thresholding: the largest weights as they were, zeros elsewhere."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.problem import LayerProblem, Status
from feta.pruners.threshold import Threshold
from feta.sparsity import Sparsity


@given(st.integers(0, 63), st.integers(0, 5))
def test_the_largest_stay_and_nothing_else_changes(kept, seed):
    W = torch.randn(7, 9, generator=torch.Generator().manual_seed(seed))
    before, bias = W.clone(), torch.ones(9)
    solution = Threshold().prune(LayerProblem(W, bias, None), Sparsity(nonzeros=kept))
    mask = solution.U != 0
    assert int(mask.sum()) == kept
    assert torch.equal(solution.U[mask], W[mask])
    if 0 < kept < 63:
        assert W[mask].abs().min() >= W[~mask].abs().max()
    assert torch.equal(W, before)
    assert torch.equal(solution.bias, bias)
    assert solution.status is Status.OK
    assert Threshold.needs.passes == "none"
