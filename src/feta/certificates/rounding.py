"""What floating-point arithmetic may add to a network's values: certificates hold for the network as it is run.

A sum of n products computed in any order with unit roundoff u is off by at most

    gamma_n (|W| |a| + |b|),   gamma_n = n u / (1 - n u)                    (Higham 2002, section 3.1)

ReLU, max-pooling and reshaping round nothing. So a computed network is an exact one in which every linear stage adds
an unknown error within a known box, and a bound that carries these boxes along holds for it. `Rounding` doubles the
boxes of float32. The second half pays for the certificate's own arithmetic, float64: its errors are the same sums
with a unit 5e8 times smaller, so half of a float32 box covers them many times over. Where a sum may leave float32's
range the box is infinite, and where a layer's own sums may, before the batch-norm that is folded into it here but not
when it is run. Not covered: arithmetic that is not a plain sum of products in float32 or better (TF32, Winograd or
FFT convolutions). `check_precision` refuses half precision.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from feta.certificates.stages import Affine, AvgPool, Summing
from feta.errors import ModelError

KNOWN = (torch.float32, torch.float64)
UNIT = 2.0**-24  # float32's unit roundoff
LARGEST = torch.finfo(torch.float32).max
UNDERFLOW = 2.0**-125  # a product below float32's normal range may be flushed to zero


@dataclass(frozen=True)
class Rounding:
    """Errors of one network; `offset` bounds what batch-norm, folded here but run apart, adds and takes away."""

    offset: float = 0.0

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> "Rounding":
        """The rounding of a model that computes in float32 or float64."""
        layers = (layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
        bias = max((float(layer.bias.abs().max()) for layer in layers if layer.bias is not None), default=0.0)
        offset = 0.0  # the largest |scale| (|bias| + |mean|) + |beta| over all channels
        for norm in model.modules():
            # Without statistics it is refused with its name when the chain is made.
            if isinstance(norm, _BatchNorm) and norm.running_var is not None and norm.running_mean is not None:
                scale = torch.rsqrt(norm.running_var.double() + norm.eps)
                if norm.affine:
                    scale = scale * norm.weight.double().abs()
                shift = scale * (bias + norm.running_mean.double().abs())
                offset = max(offset, float((shift + norm.bias.double().abs() if norm.affine else shift).max()))
        return cls(offset)

    def share(self, stage: Summing) -> float:
        """The factor on |W| |a| + |b|: twice gamma, with room for batch-norm's few operations."""
        terms = 2 + stage.terms + (8 if self.offset else 0)
        if terms * UNIT >= 0.5:
            raise ModelError(f"layer '{stage.name}' must sum fewer products, got {terms}")
        return 2 * terms * UNIT / (1 - terms * UNIT)

    def box(self, stage: Summing, largest: Tensor) -> Tensor:
        """How far each output may be off, given the largest |a| of every input."""
        sums = stage.absolute.apply(largest)
        if isinstance(stage, Affine):
            sums = sums + (stage.per_channel(stage.bias.abs()) + self.offset)
        box = self.share(stage) * sums + self.underflow(stage, largest)
        most = torch.maximum(sums, stage.sums(largest)) if isinstance(stage, AvgPool) else sums
        return box.masked_fill(~(most < LARGEST / 2), float("inf"))

    def underflow(self, stage: Summing, largest: Tensor) -> Tensor:
        """What numbers below float32's range may cost; infinite where some before a batch-norm leave it above."""
        lost = largest.new_full((len(largest), *stage.out_shape), stage.terms * UNDERFLOW)
        if not isinstance(stage, Affine) or stage.normed is None:
            return lost
        peak, factor = stage.normed.peak(largest), stage.per_channel(stage.normed.factor)
        # Each product before it and each of its own may be flushed, and so may its factor.
        lost = lost + UNDERFLOW * (peak + (stage.terms + 2) * factor)
        inside = (peak < LARGEST / 2) & (factor < LARGEST / 2) & (peak * factor < LARGEST / 2)
        return lost.masked_fill(~inside, float("inf"))


def room(x: Tensor) -> Tensor:
    """(n,): how far inputs may move and surely stay numbers of float32."""
    return (LARGEST / 2 - x.abs().flatten(1).amax(1)).clamp_min(0)


class _Watch(TorchDispatchMode):
    """Looks at the result of every operation, also of those that a cast inside the model makes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype not in KNOWN:
                kind = str(value.dtype).removeprefix("torch.")
                got = f"got {func} in {kind}; take autocast and casts out of the network"
                raise ModelError(f"certify must get networks that compute in float32 or float64, {got}")
        return result


@torch.no_grad()
def check_precision(model: nn.Module, example: Tensor) -> None:
    """Raise ModelError where a parameter, or a run on the example, is in anything but float32 or float64."""
    for name, parameter in model.named_parameters():
        if parameter.dtype not in KNOWN:
            raise ModelError(f"certify must get float32 networks, got '{name}' in {parameter.dtype}")
    with _Watch():  # type: ignore[no-untyped-call]
        model(example.clone())
