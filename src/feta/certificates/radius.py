"""The global form of a certificate: a radius from margins and Lipschitz constants, the theorems' quantities.

    f_c(x') - f_j(x') >= m_j(x) - ||w_c - w_j||_2  prod_i ||W_i||_2  ||x' - x||_2
    radius = min_j  (m_j - rounding) / (||w_c - w_j||_2 prod_i ||W_i||_2)

with m_j the margin of class c over class j at the sample, w_j the rows of the last layer, and proven upper
values of the norms of the layers before it, pooling included. The constants hold everywhere at once, so the
radius is small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from feta.certificates.chain import Chain
from feta.certificates.rounding import Rounding
from feta.certificates.stages import OUTWARD, Affine, AvgPool, Summing
from feta.errors import ModelError


@torch.no_grad()
def global_radius(
    chain: Chain, inputs: Tensor, classes: Tensor, rounding: Rounding | None = None, norm: str = "l2"
) -> Tensor:
    """(n,) float64: within it the network gives `classes` to every input; 0 where nothing is certified.

    Without `rounding` it is that of exact arithmetic, and certifies nothing of a network that is run.
    """
    check_scores(chain)
    values = chain.values(inputs)
    scores, last = values[-1], chain.stages[-1]
    # Where no linear layer comes last, the scores themselves are compared: w_j is the unit vector e_j.
    rows, body = torch.eye(scores.shape[1]).to(scores), chain.stages
    if isinstance(last, Affine):
        rows, body = last.weight, chain.stages[:-1]
    gain = math.prod(stage.lipschitz for stage in body) * OUTWARD
    margins = scores.gather(1, classes[:, None]) - scores  # (n, classes), 0 at c
    slopes = gain * torch.linalg.vector_norm(rows[:, None] - rows[None], dim=2)[classes]  # the same
    own = nn.functional.one_hot(classes, scores.shape[1]).bool()

    def smallest(slack: Tensor) -> Tensor:
        # Two classes with the same row never part: a positive margin holds everywhere.
        left = margins - slack
        share = torch.where(left > 0, left / slopes, torch.zeros_like(left))
        return share.masked_fill(own, float("inf")).amin(1)

    widest = smallest(torch.zeros_like(margins))  # no radius is larger: rounding is bounded on that ball
    # It is infinite only for a constant network, of which nothing is claimed.
    constant = ~widest.isfinite()
    widest = widest.masked_fill(constant, 0)
    error = torch.zeros_like(widest) if rounding is None else _rounding_error(chain, values, widest, rounding)
    radius = (smallest(math.sqrt(2) * error[:, None]) / OUTWARD).masked_fill(constant, 0)
    # The box of radius r lies in the ball of radius r sqrt(d).
    return radius if norm == "l2" else radius / math.sqrt(math.prod(chain.in_shape)) / OUTWARD


def check_scores(chain: Chain) -> None:
    """Raise ModelError where the chain does not end in class scores, or a Linear layer gets more than vectors."""
    if len(chain.out_shape) != 1 or chain.out_shape[0] < 2:
        raise ModelError(f"certify must get networks with two or more class scores, got {chain.out_shape}")
    for stage in chain.affines:
        if isinstance(stage.layer, nn.Linear) and len(stage.in_shape) != 1:
            raise ModelError(f"layer '{stage.name}' must get vectors, got samples of shape {stage.in_shape}")


def _rounding_error(chain: Chain, values: list[Tensor], radius: Tensor, rounding: Rounding) -> Tensor:
    """(n,): how far the computed scores may be from the exact ones, in the Euclidean norm, on the ball.

    error' = L error + || box at the sample || + share || |W| || (reach + error),   reach = gain so far x radius
    """
    error, gain = torch.zeros_like(radius), 1.0
    for stage, value in zip(chain.stages, values[:-1], strict=True):
        local = torch.zeros_like(radius)
        if isinstance(stage, Summing):
            reach = gain * radius + error
            local = rounding.box(stage, value.abs()).flatten(1).norm(dim=1)
            local += rounding.share(stage) * _absolute_norm(stage) * reach
            # Values that may leave float32's range: no unit is off the sample's by more than the reach.
            most = value.abs() + reach.view(-1, *[1] * (value.ndim - 1))
            local[~rounding.box(stage, most).flatten(1).isfinite().all(1)] = float("inf")
        error = stage.lipschitz * error + local
        gain *= stage.lipschitz
    return error


def _absolute_norm(stage: Summing) -> float:
    """At least || |W| ||_2: the root of its largest row sum times its largest column sum."""
    if isinstance(stage, AvgPool):
        return stage.lipschitz
    row_sums = stage.absolute.apply(stage.weight.new_ones(1, *stage.in_shape))
    column_sums = stage.absolute.transpose(stage.weight.new_ones(1, *stage.out_shape))
    return math.sqrt(float(row_sums.max()) * float(column_sums.max())) * OUTWARD
