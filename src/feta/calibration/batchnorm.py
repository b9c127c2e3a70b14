"""Batch-norm statistics estimated anew, for a network whose earlier layers have changed."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.calibration.inputs import Inputs, Merged, size_of
from feta.calibration.model import call, restoring


def statistics_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The buffers of all batch-norms, and copies of what is in them."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    return [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]


@torch.no_grad()
def reestimate(model: nn.Module, inputs: Inputs) -> int:
    """Replace running means and variances by those over `inputs`; the number of layers changed.

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
        for batch in batches if norms else ():
            if size_of(batch) >= least:
                call(model, batch)
    return len(norms)
