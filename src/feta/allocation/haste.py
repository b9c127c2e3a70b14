"""A layer pruned in haste to many sparsities, for its error–count curve: not well, but cheaply and alike.

    mask      the k largest |w_jo| * ||a_j - mean||        (for methods that fit; |w_jo| for those that do not)
    weights   on it, a few steps of conjugate gradients towards   min ||(A - mean)(U - W)||^2 + r ||U - W||^2

The bias takes up what the means of the inputs leave. One pass for a Gram matrix serves every sparsity, and
nothing is factored. Curves of thresholding overstate what a layer loses under a method that fits; these lie
closer to them, and what an allocation needs is how layers compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.statistics import gram
from feta.layers import LayerView
from feta.problem import ActivationStream
from feta.solvers.conjugate import projected_cg
from feta.sparsity import top_k_mask

RIDGE = 0.01  # of the mean of the Gram matrix's diagonal
ITERATIONS = 6


@dataclass(frozen=True)
class _Group:
    W: Tensor  # (d_in, d_out)
    bias: Tensor | None
    H: Tensor | None = None  # (d_in, d_in): of centred inputs where there is a bias; None: no fit
    mean: Tensor | None = None  # (d_in,)

    @classmethod
    def fitted(cls, W: Tensor, bias: Tensor | None, rows: ActivationStream) -> _Group:
        statistics = gram(rows, with_bias=bias is not None)
        if bias is None:
            return cls(W, bias, statistics.H.to(W.dtype))
        mean = statistics.H[-1, :-1] / statistics.rows
        centred = statistics.H[:-1, :-1] - statistics.rows * torch.outer(mean, mean)
        return cls(W, bias, centred.to(W.dtype), mean.to(W.dtype))

    def scores(self) -> Tensor:
        if self.H is None:
            return self.W.abs()
        return self.W.abs() * self.H.diagonal().clamp_min(0).sqrt()[:, None]

    def at(self, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.H is None:
            return self.W.where(mask, 0), self.bias
        H = self.H.clone()
        H.diagonal().add_(RIDGE * float(H.diagonal().mean()))
        U = projected_cg(lambda D: H @ D, H.diagonal(), H @ self.W, self.W.where(mask, 0), mask, ITERATIONS)
        if self.bias is None or self.mean is None:
            return U, self.bias
        return U, self.bias + self.mean @ (self.W - U)


@dataclass(frozen=True)
class HastyLayer:
    """All groups of one layer; `write_` puts the answer for k weights into a view of a copy of the layer."""

    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, view: LayerView, streams: tuple[ActivationStream, ...] | None) -> HastyLayer:
        """One stream of rows per group, or None where the method does not fit."""
        parts = [(view.matrix(group), view.bias(group)) for group in range(view.groups)]
        if streams is None:
            return cls(tuple(_Group(W, bias) for W, bias in parts))
        return cls(
            tuple(_Group.fitted(W, bias, rows) for (W, bias), rows in zip(parts, streams, strict=True))
        )

    def write_(self, view: LayerView, count: int) -> None:
        # Selected over all groups together, as the engine shares a layer's weights over its groups.
        scores = torch.stack([group.scores() for group in self.groups])
        for index, (group, mask) in enumerate(zip(self.groups, top_k_mask(scores, count), strict=True)):
            U, bias = group.at(mask)
            view.write(U, bias, index)
