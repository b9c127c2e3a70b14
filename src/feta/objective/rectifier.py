"""Rectifiers rho(z) and their slopes rho'(z).

    relu       rho(z) = max(z, 0), with slope 0 at z = 0
    softplus   rho(z) = log(1 + exp(theta z)) / theta, the paper's smooth stand-in
    identity   for layers without an activation

softplus(0) = log(2) / theta is not 0 while the network runs a true ReLU: a large theta, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from feta.errors import ConfigError


class Rectifier(Protocol):
    def value(self, Z: Tensor) -> Tensor: ...

    def slope(self, Z: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Relu:
    def value(self, Z: Tensor) -> Tensor:
        return Z.clamp_min(0)

    def slope(self, Z: Tensor) -> Tensor:
        return (Z > 0).to(Z.dtype)


@dataclass(frozen=True)
class Identity:
    def value(self, Z: Tensor) -> Tensor:
        return Z

    def slope(self, Z: Tensor) -> Tensor:
        return torch.ones_like(Z)


@dataclass(frozen=True)
class Softplus:
    theta: float

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ConfigError(f"Softplus.theta must be > 0, got {self.theta}")

    def value(self, Z: Tensor) -> Tensor:
        # max(z, 0) + log1p(exp(-|theta z|)) / theta: exp never overflows.
        return Z.clamp_min(0) + torch.log1p(torch.exp(-(self.theta * Z).abs())) / self.theta

    def slope(self, Z: Tensor) -> Tensor:
        return F.sigmoid(self.theta * Z)
