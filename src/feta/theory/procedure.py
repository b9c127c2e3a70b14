"""The paper's three steps for a margin that pruning takes to zero.

1. Prune, and apply Theorem 5.2 until γ − lost reaches zero. 2. Compute accuracy, scores, margins and norms of the
network reached. 3. Start from there again.

The networks between dense and pruned are taken on the straight line, where the printed loss e D² sum ‖H_i‖/‖W_i‖
grows in proportion to the way gone: the zero is met at a share γ / lost of the way that is left. Margins of real
networks are many orders of magnitude under that loss, so the number of restarts is as large; `log_needed` says how
large. Only the last start counts for the bound of the last network, and it may be that network itself: the bound
`pruned` of theorems.by_itself is where this procedure ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from feta.certificates.chain import Chain
from feta.errors import ConfigError
from feta.theory.perturbation import blend, measure
from feta.theory.robustness import Setting
from feta.theory.theorems import Bound, all_layers


@dataclass(frozen=True)
class Start:
    """One start: where on the way, how far the margin carries from there, and the accuracy there."""

    at: float  # share of the way from dense to pruned
    log_gamma: float
    log_reach: float  # ln of the share of the rest of the way at which the margin is gone
    accuracy: float | None  # percent on the samples; None without labels


@dataclass(frozen=True)
class Procedure:
    """The starts made, and the bound of the pruned network if the last one carries all the way."""

    starts: tuple[Start, ...]
    bound: Bound | None
    log_needed: float  # ln of the number of starts, at the pace of the last one; 0: the first one arrived

    @property
    def arrived(self) -> bool:
        return self.bound is not None


def three_steps(
    dense: Chain,
    pruned: Chain,
    batches: Iterable[Any],
    setting: Setting,
    *,
    labels: Tensor | None = None,
    max_starts: int = 5,
) -> Procedure:
    """Walk from dense to pruned by Theorem 5.2 as printed; every start makes a pass over `batches`."""
    if max_starts < 1:
        raise ConfigError(f"max_starts must be >= 1, got {max_starts}")
    starts: list[Start] = []
    at, log_needed = 0.0, math.inf
    for _ in range(max_starts):
        seen = measure(blend(dense, pruned, at), pruned, batches)
        bound = all_layers(seen, setting, "paper")
        reach = -bound.log_lost
        right = None if labels is None else int((seen.answers == labels.cpu()).sum())
        accuracy = None if right is None else 100 * right / seen.samples
        starts.append(Start(at, bound.log_gamma, reach, accuracy))
        if bound.log_bound is not None:
            return Procedure(tuple(starts), bound, math.log(len(starts)))
        log_needed = bound.log_lost  # steps of this size in the rest of the way
        step = math.exp(reach) * (1 - at)
        if at + step == at:  # below the resolution of floats: the next start would be this one
            break
        at = min(at + step, 1.0)
    return Procedure(tuple(starts), None, log_needed)
