"""Conjugate gradients on a support: least squares where a factor would cost too much.

H V = C   on the entries of a mask, all columns at once, H known by its products alone
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def projected_cg(
    product: Callable[[Tensor], Tensor], diagonal: Tensor, C: Tensor, V: Tensor, mask: Tensor, iterations: int
) -> Tensor:
    """Steps from V, preconditioned by H's diagonal (d,); V, C and mask are (d, d_out)."""
    weights = diagonal[:, None].where(diagonal[:, None] > 0, 1)
    residual = (C - product(V)).where(mask, 0)
    direction = residual / weights
    energy = (residual * direction).sum(0)
    for _ in range(iterations):
        image = product(direction).where(mask, 0)
        curvature = (direction * image).sum(0)
        step = (energy / curvature).where(curvature > 0, 0)  # a column that has arrived stays
        V = V + step * direction
        residual = residual - step * image
        scaled = residual / weights
        before, energy = energy, (residual * scaled).sum(0)
        direction = scaled + (energy / before).where(before > 0, 0) * direction
    return V
