"""Batch-norm statistics estimated anew, for a network whose earlier layers have changed."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.calibration.inputs import Inputs, Merged, size_of
from feta.calibration.model import call, restoring
from feta.ranks import ALONE, Ranks


def statistics_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The buffers of all batch-norms, and copies of what is in them."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    return [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]


@torch.no_grad()
def reestimate(model: nn.Module, inputs: Inputs, ranks: Ranks = ALONE) -> int:
    """Replace running means and variances by those over `inputs`; the number of layers changed.

    ranks: processes that have the same inputs, each of which runs some of the batches.

    Those of the batches are averaged. A batch of one sample has no variance: it is left out if there are larger ones,
    and put together with others if there are none.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    with restoring(norms, "momentum", "training"):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
            norm.training = True
        batches = inputs if any(size_of(batch) > 1 for batch in inputs) else Merged(inputs)
        least = 2 if any(size_of(batch) > 1 for batch in batches) else 1
        used = (batch for batch in (batches if norms else ()) if size_of(batch) >= least)
        for number, batch in enumerate(used):
            if number % ranks.count == ranks.rank:
                call(model, batch)
        if ranks.many:
            for norm in norms:
                _average(norm, ranks)
    return len(norms)


def _average(norm: nn.Module, ranks: Ranks) -> None:
    """The mean over the batches of all processes, in each of them."""
    mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    own = float(batches)  # type: ignore[arg-type]
    total = ranks.sum([own])[0]
    for buffer in (mean, variance):
        assert isinstance(buffer, Tensor)
        buffer.copy_(ranks.add_(buffer.double() * own) / max(total, 1))
    batches.fill_(total)  # type: ignore[operator]
