"""The global form of a certificate: a radius from margins and Lipschitz constants, the theorems' quantities.

    f_c(x') - f_j(x') >= m_j(x) - ||w_c - w_j||_2  prod_i ||W_i||_2  ||x' - x||_2
    radius = min_j  (m_j - rounding) / (||w_c - w_j||_2 prod_i ||W_i||_2)

with m_j the margin of class c over class j at the sample, w_j the rows of the last layer, and proven upper
values of the norms of the layers before it, pooling included. It holds everywhere at once, and that makes it small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from feta.certificates.chain import Chain
from feta.certificates.rounding import OUTWARD, Rounding
from feta.certificates.stages import Affine, AvgPool, Stage
from feta.errors import ConfigError, ModelError


@torch.no_grad()
def global_radius(
    chain: Chain, inputs: Tensor, classes: Tensor, rounding: Rounding | None = None, norm: str = "l2"
) -> Tensor:
    """(n,) float64: within it the network gives `classes` to every input; 0 where nothing is certified.

    Without `rounding` it is that of exact arithmetic, and certifies nothing of a network that is run.
    """
    check_scores(chain)
    x = inputs.to(chain.device, torch.float64)
    head = chain.stages[-1] if isinstance(chain.stages[-1], Affine) else None
    body = chain.stages[:-1] if head is not None else chain.stages
    values = [x]
    for stage in chain.stages:
        values.append(stage.apply(values[-1]))
    scores, gain = values[-1], math.prod(stage.lipschitz for stage in body) * OUTWARD
    margins = scores.gather(1, classes[:, None]) - scores  # (n, classes), 0 at c
    slopes = gain * _row_distances(head, scores)[classes]  # (n, classes), 0 at c
    own = nn.functional.one_hot(classes, scores.shape[1]).bool()

    def smallest(slack: Tensor) -> Tensor:
        # Two classes with the same row never part: a positive margin holds everywhere.
        left = margins - slack
        share = torch.where(left > 0, left / slopes, torch.zeros_like(left))
        return share.masked_fill(own, float("inf")).amin(1)

    widest = smallest(torch.zeros_like(margins))  # no radius is larger: rounding is bounded on that ball
    # Infinite only for a network that is constant; nothing is claimed of it.
    finite = torch.where(widest.isfinite(), widest, torch.zeros_like(widest))
    error = torch.zeros_like(finite)
    if rounding is not None:
        error = _rounding_error(chain.stages, values, finite, rounding)
    radius = smallest(math.sqrt(2) * error[:, None]) / OUTWARD
    radius = torch.where(widest.isfinite(), radius, torch.zeros_like(radius))
    # The box of radius r lies in the ball of radius r sqrt(d).
    return radius if norm == "l2" else radius / math.sqrt(math.prod(chain.in_shape)) / OUTWARD


def check_scores(chain: Chain) -> None:
    if len(chain.out_shape) != 1 or chain.out_shape[0] < 2:
        raise ModelError(f"certify must get networks with two or more class scores, got {chain.out_shape}")
    for stage in chain.affines:
        if isinstance(stage.layer, nn.Linear) and len(stage.in_shape) != 1:
            raise ModelError(f"layer '{stage.name}' must get vectors, got samples of shape {stage.in_shape}")


def check_norm(norm: str) -> None:
    if norm not in ("l2", "linf"):
        raise ConfigError(f"certify.norm must be 'l2' or 'linf', got '{norm}'")


def _row_distances(head: Affine | None, scores: Tensor) -> Tensor:
    """(classes, classes): ||w_c - w_j||_2, or ||e_c - e_j||_2 where no linear layer comes last."""
    if head is not None and head.weight.ndim == 2:
        rows = head.weight.double()
    else:
        rows = torch.eye(scores.shape[1], dtype=torch.float64, device=scores.device)
        rows = rows * (head.lipschitz if head is not None else 1.0)
    distances: Tensor = torch.linalg.vector_norm(rows[:, None] - rows[None], dim=2)
    return distances


def _rounding_error(
    stages: tuple[Stage, ...], values: list[Tensor], radius: Tensor, rounding: Rounding
) -> Tensor:
    """(n,): how far the computed scores may be from the exact ones, in the Euclidean norm, on the ball.

    error' = L error + || box at the sample || + share || |W| || (reach + error),   reach = gain so far x radius
    """
    error, gain = torch.zeros_like(radius), 1.0
    for stage, value in zip(stages, values[:-1], strict=True):
        local = torch.zeros_like(radius)
        if isinstance(stage, Affine | AvgPool):
            reach = gain * radius + error
            local = rounding.box(stage, value.abs()).flatten(1).norm(dim=1)
            local += rounding.share(stage) * _absolute_norm(stage) * reach
            # Values that may leave float32's range: no unit is off the sample's by more than the reach.
            most = value.abs() + reach.view(-1, *[1] * (value.ndim - 1))
            local[~rounding.box(stage, most).flatten(1).isfinite().all(1)] = float("inf")
        error = stage.lipschitz * error + local
        gain *= stage.lipschitz
    return error


def _absolute_norm(stage: Affine | AvgPool) -> float:
    """At least || |W| ||_2: the root of its largest row sum times its largest column sum."""
    if isinstance(stage, AvgPool):
        return stage.lipschitz
    one = stage.weight.new_ones(1, *stage.in_shape), stage.weight.new_ones(1, *stage.out_shape)
    return (
        math.sqrt(float(stage.apply_abs(one[0]).max()) * float(stage.transpose_abs(one[1]).max())) * OUTWARD
    )
