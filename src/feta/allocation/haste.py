"""A layer pruned in haste to many sparsities, for its error–count curve: not well, but cheaply and alike.

    mask      the k largest |w_jo| * ||a_j - mean||
    weights   on it, a few steps of conjugate gradients towards   min ||(A - mean)(U - W)||^2 + r ||U - W||^2

The bias takes up what the means of the inputs leave. One pass for a Gram matrix serves every sparsity, and
nothing is factored. Curves of plain thresholding would overstate what a layer loses under a method that fits,
and for thresholding itself they gave no better shares (they flatten where little is left of a layer).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.statistics import gram
from feta.layers import LayerView
from feta.problem import ActivationStream
from feta.solvers.refit import projected_cg
from feta.sparsity import top_k_mask

RIDGE = 0.01  # of the mean of the Gram matrix's diagonal
ITERATIONS = 4  # shares after 6 differ by a hundredth or less


@dataclass(frozen=True)
class _Group:
    """One group of a layer and what its rows say: enough to fit its weights on any mask."""

    W: Tensor  # (d_in, d_out)
    bias: Tensor | None
    H: Tensor  # (d_in, d_in) with the ridge, of centred inputs where there is a bias
    C: Tensor  # (d_in, d_out): H W
    norms: Tensor  # (d_in,) of the inputs, centred likewise
    mean: Tensor  # (d_in,); zero without a bias

    @classmethod
    def of(cls, W: Tensor, bias: Tensor | None, rows: ActivationStream) -> "_Group":
        statistics = gram(rows, with_bias=bias is not None)
        H, mean = statistics.H[: len(W), : len(W)], statistics.H.new_zeros(len(W))
        if bias is not None:
            mean = statistics.H[-1, :-1] / statistics.rows
            H = H - statistics.rows * torch.outer(mean, mean)
        norms = H.diagonal().clamp_min(0).sqrt().to(W.dtype)
        H = H.to(W.dtype)
        H.diagonal().add_(RIDGE * float(norms.square().mean()))
        return cls(W, bias, H, H @ W, norms, mean.to(W.dtype))

    def at(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        start = self.W.where(mask, 0)
        U = projected_cg(lambda D: self.H @ D, self.H.diagonal(), self.C, start, mask, ITERATIONS)
        return U, None if self.bias is None else self.bias + self.mean @ (self.W - U)


@dataclass(frozen=True)
class HastyLayer:
    """All groups of one layer; `write_` puts the answer for k weights into a view of a copy of the layer."""

    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, view: LayerView, streams: Sequence[ActivationStream]) -> "HastyLayer":
        """One stream of rows per group."""
        return cls(tuple(_Group.of(view.matrix(g), view.bias(g), rows) for g, rows in enumerate(streams)))

    def write_(self, view: LayerView, count: int) -> None:
        # Selected over all groups together, as the engine shares a layer's weights over its groups.
        scores = torch.stack([group.W.abs() * group.norms[:, None] for group in self.groups])
        for index, (group, mask) in enumerate(zip(self.groups, top_k_mask(scores, count), strict=True)):
            view.write(*group.at(mask), index)
