"""Milliseconds of networks, side by side."""

import time
from collections.abc import Sequence

import torch
from torch import nn

from feta.calibration.inputs import Batch
from feta.calibration.model import call, clock, device_of, evaluating

REPEATS, LONGEST = 15, 2.0  # runs of each network, and seconds after which no more are begun


@torch.no_grad()
def milliseconds(networks: Sequence[nn.Module], batch: Batch) -> list[float]:
    """The least time of each network for a batch; they take turns, so that all meet the same machine."""
    spent: list[list[float]] = [[] for _ in networks]
    with evaluating(*networks):
        started = time.perf_counter()
        while len(spent[0]) < 3 or (len(spent[0]) < REPEATS and time.perf_counter() - started < LONGEST):
            for network, times in zip(networks, spent, strict=True):
                before = clock(device_of(network))
                call(network, batch)
                times.append(1000 * (clock(device_of(network)) - before))
    return [min(times) for times in spent]
