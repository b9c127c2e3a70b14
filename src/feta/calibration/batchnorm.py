"""Batch-norm statistics estimated anew, for a network whose earlier layers have changed."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.calibration.inputs import Batch, Inputs, Merged, size_of
from feta.calibration.model import call, restoring
from feta.ranks import ALONE, Ranks

Runs = Callable[[Iterable[Batch]], Iterable[Any]]


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """The batch-norms with statistics."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


def statistics_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The buffers of all batch-norms, and copies of what is in them."""
    return [(buffer, buffer.clone()) for norm in norms_of(model) for buffer in norm.buffers(recurse=False)]


@torch.no_grad()
def reestimate(model: nn.Module, inputs: Inputs, ranks: Ranks = ALONE, run: Runs | None = None) -> int:
    """Replace running means and variances by those over `inputs`; the number of layers changed.

    ranks: processes that have the same inputs, each of which runs some of the batches.
    run: runs the model once on each of some batches, as it is iterated over; None: batch by batch.

    Those of the batches are averaged. A batch of one sample has no variance: it is left out if there are larger ones,
    and put together with others if there are none.
    """
    norms = norms_of(model)
    with restoring(norms, "momentum", "training"):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
            norm.training = True
        batches = inputs if any(size_of(batch) > 1 for batch in inputs) else Merged(inputs)
        least = 2 if any(size_of(batch) > 1 for batch in batches) else 1
        used = _Used(batches if norms else (), least, ranks)
        for _ in (call(model, batch) for batch in used) if run is None else run(used):
            pass
        if ranks.many:
            for norm in norms:
                _average(norm, ranks)
    return len(norms)


@dataclass(frozen=True)
class _Used:
    """This process's share of the batches that are large enough."""

    batches: Iterable[Batch]
    least: int
    ranks: Ranks

    def __iter__(self) -> Iterator[Batch]:
        large = (batch for batch in self.batches if size_of(batch) >= self.least)
        return islice(large, self.ranks.rank, None, self.ranks.count)


def _average(norm: nn.Module, ranks: Ranks) -> None:
    """The mean over the batches of all processes, in each of them."""
    mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    own = float(batches)  # type: ignore[arg-type]
    total = ranks.sum([own])[0]
    for buffer in (mean, variance):
        assert isinstance(buffer, Tensor)
        buffer.copy_(ranks.add_(buffer.double() * own) / max(total, 1))
    batches.fill_(total)  # type: ignore[operator]
