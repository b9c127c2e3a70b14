"""The largest radius a test accepts, for many samples at once, each with its own bracket."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (numbers of samples, radii to try) -> whether each is certified
Test = Callable[[Tensor, Tensor], Tensor]

GROW, SHRINK = 2.0, 0.25


def largest_radius(test: Test, guess: Tensor, probes: int = 9, tolerance: float = 0.04) -> Tensor:
    """(n,) a radius that was accepted, 0 where none was; samples whose guess is not > 0 are left out.

    From the guess outwards by doubling or inwards by quartering until a pass and a failure enclose the end,
    then by halving the bracket on a log scale until its ends differ by `tolerance`. What is returned has been
    accepted by `test` itself, so nothing hangs on the test being monotone.
    """
    passed = torch.zeros_like(guess)
    failed = torch.full_like(guess, float("inf"))
    trial = guess.clone()
    for _ in range(probes):
        active = ((trial > 0) & trial.isfinite() & (failed > (1 + tolerance) * passed)).nonzero().squeeze(1)
        if len(active) == 0:
            break
        tried = trial[active]
        accepted = test(active, tried)
        passed[active] = torch.where(accepted, tried, passed[active])
        failed[active] = torch.where(accepted, failed[active], tried)
        low, high = passed[active], failed[active]
        inside = torch.where(low > 0, (low * high).sqrt(), SHRINK * high)
        trial[active] = torch.where(high.isinf(), GROW * low, inside)
    return passed
