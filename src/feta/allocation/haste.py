"""A layer pruned in haste to many sparsities, for its error–count curve: not well, but cheaply and alike.

    mask      the k largest |w_jo| * ||a_j - mean||
    weights   on it, a few steps of conjugate gradients towards   min ||(A - mean)(U - W)||^2 + r ||U - W||^2

The bias takes up what the means of the inputs leave. One pass for a Gram matrix serves every sparsity, and
nothing is factored. Curves of plain thresholding would overstate what a layer loses under a method that fits,
and for thresholding itself they gave no better shares (they flatten where little is left of a layer).
"""

from __future__ import annotations

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
class _Fit:
    """What the rows say of one group: enough to fit its weights on any mask."""

    H: Tensor  # (d_in, d_in) with the ridge, of centred inputs where there is a bias
    C: Tensor  # (d_in, d_out): H W
    norms: Tensor  # (d_in,) of the inputs, centred likewise
    mean: Tensor | None  # (d_in,)

    @classmethod
    def of(cls, W: Tensor, bias: Tensor | None, rows: ActivationStream) -> _Fit:
        statistics = gram(rows, with_bias=bias is not None)
        H, mean = statistics.H[: len(W), : len(W)], None
        if bias is not None:
            mean = statistics.H[-1, :-1] / statistics.rows
            H = H - statistics.rows * torch.outer(mean, mean)
            mean = mean.to(W.dtype)
        norms = H.diagonal().clamp_min(0).sqrt().to(W.dtype)
        H = H.to(W.dtype)
        H.diagonal().add_(RIDGE * float(norms.square().mean()))
        return cls(H, H @ W, norms, mean)


@dataclass(frozen=True)
class _Group:
    W: Tensor  # (d_in, d_out)
    bias: Tensor | None
    fit: _Fit

    def scores(self) -> Tensor:
        return self.W.abs() * self.fit.norms[:, None]

    def at(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        start, fit = self.W.where(mask, 0), self.fit
        U = projected_cg(lambda D: fit.H @ D, fit.H.diagonal(), fit.C, start, mask, ITERATIONS)
        if self.bias is None or fit.mean is None:
            return U, self.bias
        return U, self.bias + fit.mean @ (self.W - U)


@dataclass(frozen=True)
class HastyLayer:
    """All groups of one layer; `write_` puts the answer for k weights into a view of a copy of the layer."""

    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, view: LayerView, streams: Sequence[ActivationStream]) -> HastyLayer:
        """One stream of rows per group."""
        parts = [(view.matrix(group), view.bias(group)) for group in range(view.groups)]
        pairs = zip(parts, streams, strict=True)
        return cls(tuple(_Group(W, bias, _Fit.of(W, bias, rows)) for (W, bias), rows in pairs))

    def write_(self, view: LayerView, count: int) -> None:
        # Selected over all groups together, as the engine shares a layer's weights over its groups.
        scores = torch.stack([group.scores() for group in self.groups])
        for index, (group, mask) in enumerate(zip(self.groups, top_k_mask(scores, count), strict=True)):
            U, bias = group.at(mask)
            view.write(U, bias, index)
