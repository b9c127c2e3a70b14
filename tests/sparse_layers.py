"""Layers with zeros in them, for tests."""

import torch
from torch import Tensor, nn


def zeroed(layer: nn.Module, share: float, seed: int = 0) -> nn.Module:
    """The layer with a share of its weights zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in layer.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.weight[torch.rand(module.weight.shape, generator=generator) < share] = 0
    return layer.requires_grad_(False)


def sparse_linear(d_in: int, d_out: int, share: float = 0.8, bias: bool = True) -> nn.Linear:
    torch.manual_seed(d_in + d_out)
    return zeroed(nn.Linear(d_in, d_out, bias=bias), share)


def reference(layer: nn.Linear, x: Tensor) -> Tensor:
    """The product in float64."""
    bias = None if layer.bias is None else layer.bias.double()
    return nn.functional.linear(x.double(), layer.weight.double(), bias)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


class FakeTimer:
    """Milliseconds by the name of the way; everything else takes 1 ms. Remembers what it saw."""

    def __init__(self, **milliseconds: float) -> None:
        self.milliseconds, self.seen = milliseconds, []

    def __call__(self, ways, cold):
        for way in ways.values():
            way()
        self.seen.append((tuple(ways), cold))
        return {name: self.milliseconds.get(name, 1.0) for name in ways}
