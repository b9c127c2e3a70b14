"""What floating-point arithmetic may add to a network's values: certificates hold for the network as it is run.

A sum of n products computed in any order with unit roundoff u is off by at most

    gamma_n (|W| |a| + |b|),   gamma_n = n u / (1 - n u)                    (Higham 2002, section 3.1)

ReLU, max-pooling and reshaping round nothing. So a computed network is an exact one in which every linear
stage adds an unknown error within a known box, and a bound that carries these boxes along holds for it.

`Rounding` doubles the boxes of float32. The second half pays for the certificate's own arithmetic, float64:
its errors are the same sums with a unit 5e8 times smaller, so half of a float32 box covers them many times
over. Where a sum may leave float32's range the box is infinite. Not covered: arithmetic that is not a plain sum of
products in float32 or better (TF32, Winograd or FFT convolutions); half precision is looked for and refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from feta.certificates.stages import Affine, AvgPool
from feta.errors import ModelError

UNIT = 2.0**-24  # float32's unit roundoff
LARGEST = torch.finfo(torch.float32).max
UNDERFLOW = 2.0**-125  # a product below float32's normal range may be flushed to zero
OUTWARD = 1 + 1e-9  # on norms and radii: float64 loses less than 1e-12 of them


@dataclass(frozen=True)
class Rounding:
    """Errors of one network; `offset` bounds what batch-norm, folded here but run apart, adds and takes away."""

    offset: float = 0.0

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> Rounding:
        """The rounding of a model that computes in float32 or float64."""
        for name, parameter in model.named_parameters():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise ModelError(f"certify must get float32 networks, got '{name}' in {parameter.dtype}")
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        if not norms:
            return cls()
        biases = [
            float(layer.bias.abs().max())
            for layer in model.modules()
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None
        ]
        return cls(max(_shift(norm, max(biases, default=0.0)) for norm in norms))

    def share(self, stage: Affine | AvgPool) -> float:
        """The factor on |W| |a| + |b|: twice gamma, with room for batch-norm's few operations."""
        terms = 2 + _terms(stage) + (8 if self.offset else 0)
        if terms * UNIT >= 0.5:
            raise ModelError(f"layer '{stage.name}' must sum fewer products, got {terms}")
        return 2 * terms * UNIT / (1 - terms * UNIT)

    def box(self, stage: Affine | AvgPool, largest: Tensor) -> Tensor:
        """How far each output may be off, given the largest |a| of every input."""
        if isinstance(stage, AvgPool):
            sums = stage.apply(largest)
        else:
            shift = stage.bias.abs().reshape(-1, *[1] * (len(stage.out_shape) - 1)) + self.offset
            sums = stage.apply_abs(largest) + shift
        box = self.share(stage) * sums + _terms(stage) * UNDERFLOW
        return box.masked_fill(~(sums < LARGEST / 2), float("inf"))


def _terms(stage: Affine | AvgPool) -> int:
    """Products in one output."""
    if isinstance(stage, Affine):
        return stage.weight[0].numel()
    return int((stage.rows != 0).sum(1).max()) * int((stage.columns != 0).sum(1).max())


def _shift(norm: _BatchNorm, bias: float) -> float:
    """The largest |scale| (|bias| + |mean|) + |beta| over the channels."""
    if norm.running_var is None or norm.running_mean is None:
        return 0.0  # refused with its name when the chain is made
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.affine:
        scale = scale * norm.weight.double().abs()
    shift = scale * (bias + norm.running_mean.double().abs())
    return float((shift + norm.bias.double().abs() if norm.affine else shift).max())
