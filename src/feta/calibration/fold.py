"""A layer seen together with the batch-norm behind it.

    z = s (A W + b) + t,   s = gamma / sigma,   t = beta - mu s

In s W this is a layer like any other, with a bias that is written to beta, also where the layer has none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feta.calibration.stream import Through
from feta.calibration.trace import LayerTrace
from feta.layers import LayerView
from feta.problem import Activation


@dataclass(frozen=True)
class Folded:
    """One group of a layer with what follows it; without a batch-norm it is the layer itself."""

    view: LayerView
    group: int
    through: Through
    norm: nn.Module | None = None

    @classmethod
    def of(cls, view: LayerView, group: int, trace: LayerTrace, model: nn.Module, activation: Activation) -> "Folded":
        if trace.follow.norm is None:
            return cls(view, group, Through(activation, shortcut=trace.follow.shortcut))
        norm = model.get_submodule(trace.follow.norm)
        if not bool(_scale_and_shift(norm)[0].all()):  # a channel that is switched off says nothing of its weights
            return cls(view, group, Through(Activation.LINEAR))
        scale, shift = (view.part(whole, group).to(view.solve_dtype) for whole in _scale_and_shift(norm))
        return cls(view, group, Through(activation, scale, shift, trace.follow.shortcut), norm)

    @property
    def W(self) -> Tensor:
        W = self.view.matrix(self.group)
        return W if self.through.scale is None else W * self.through.scale

    @property
    def bias(self) -> Tensor | None:
        return self.behind(self.view.bias(self.group))

    def behind(self, bias: Tensor | None) -> Tensor | None:
        """The layer's own bias, as seen behind the batch-norm."""
        scale, shift = self.through.scale, self.through.shift
        if scale is None or shift is None:
            return bias
        return shift if bias is None else bias * scale + shift

    @torch.no_grad()
    def write(self, U: Tensor, bias: Tensor | None) -> None:
        """Put weights that are seen behind the batch-norm into the layer and the batch-norm."""
        scale, shift = self.through.scale, self.through.shift
        if scale is None or shift is None or self.norm is None or bias is None:
            self.view.write(U, bias, self.group)
            return
        self.view.write(U / scale.where(scale != 0, 1), None, self.group)
        own = self.view.bias(self.group)
        moved = bias - (shift if own is None else own * scale + shift)
        beta = self.view.part(self.norm.bias, self.group)  # type: ignore[arg-type]
        beta.add_(moved.to(beta.dtype))


def _scale_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    mean, variance, beta, gamma = (getattr(norm, name) for name in ("running_mean", "running_var", "bias", "weight"))
    scale = (variance.double() + norm.eps).rsqrt()
    scale = scale if gamma is None else scale * gamma.detach().double()
    return scale, beta.detach().double() - mean.double() * scale
