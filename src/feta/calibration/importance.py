"""How much each output of a layer matters to the network's own outputs.

    s_j^2 = mean over samples with output j active of   sum_c (d logit_c / d z_j)^2

Estimated by a few backward passes of the original network with random signs on the logits: no labels, one
batch. It tells a layer's solver which outputs deserve its weights.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch
from feta.calibration.model import call, differentiable, outputs_of


def output_importance(
    model: nn.Module, names: Sequence[str], batch: Batch, *, seed: int = 0, probes: int = 8
) -> dict[str, Tensor]:
    """s (d_out,) for each named layer; a layer that gradients do not reach is left out."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        # Where parameters are frozen and inputs are integers nothing would ask for gradients.
        outputs[name] = output if output.requires_grad else output.requires_grad_()
        return outputs[name].clone()  # in-place functions that follow must not touch what is kept

    generator = torch.Generator().manual_seed(seed)
    with ExitStack() as hooks, torch.enable_grad(), differentiable(model):
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(partial(keep, name)))
        logits = outputs_of(call(model, batch))
        if not logits.requires_grad:
            return {}
        totals = [torch.zeros_like(z) for z in outputs.values()]
        for _ in range(probes):
            signs = torch.randint(0, 2, logits.shape, generator=generator).to(logits) * 2 - 1
            gradients = torch.autograd.grad(logits, [*outputs.values()], signs, retain_graph=True, allow_unused=True)
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total += gradient.square() / probes
    found = {}
    for (name, z), total in zip(outputs.items(), totals, strict=True):
        dim = 1 if isinstance(model.get_submodule(name), nn.Conv2d) else z.ndim - 1  # that of the layer's outputs
        over = [d for d in range(z.ndim) if d != dim]
        active = (z.detach() > 0).sum(over).clamp_min(1)
        found[name] = (total.double().sum(over) / active).sqrt()
    return {name: s for name, s in found.items() if bool((s > 0).any())}
