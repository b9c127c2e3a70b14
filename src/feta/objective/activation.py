"""What follows a layer's product: the activation rho(z) and its slope rho'(z), entry by entry."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from feta.errors import check_range


class Activation(StrEnum):
    """What the network applies to the layer's output, as far as a method can use it.

    RELU: max(z, 0), with slope 0 at z = 0.
    LINEAR: nothing, or something that the methods know nothing of; B then holds pre-activations.
    The others are torch's functions of these names, LEAKY_RELU with a slope of 0.01.
    """

    RELU = "relu"
    LINEAR = "linear"
    GELU = "gelu"
    SILU = "silu"
    RELU6 = "relu6"
    HARDSWISH = "hardswish"
    LEAKY_RELU = "leaky_relu"

    def __call__(self, Z: Tensor) -> Tensor:
        found: Tensor = Z if self is Activation.LINEAR else _FUNCTIONS[self.value](Z)
        return found

    def slope(self, Z: Tensor) -> Tensor:
        if self is Activation.LINEAR:
            return torch.ones_like(Z)
        slope: Tensor = _SLOPES[self.value](Z)
        return slope.to(Z.dtype)

    @property
    def steepest(self) -> float:
        """The largest |rho'|."""
        return _STEEPEST.get(self, 1.0)


def _gelu_slope(Z: Tensor) -> Tensor:
    below = 0.5 * (1 + torch.erf(Z * math.sqrt(0.5)))
    return below + Z * torch.exp(-0.5 * Z.square()) / math.sqrt(2 * math.pi)


def _silu_slope(Z: Tensor) -> Tensor:
    s = torch.sigmoid(Z)
    return s * (1 + Z * (1 - s))


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
}
_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda Z: Z > 0,
    "gelu": _gelu_slope,
    "silu": _silu_slope,
    "relu6": lambda Z: (Z > 0) & (Z < 6),
    "hardswish": lambda Z: (Z / 3 + 0.5).where(Z > -3, 0).where(Z < 3, 1),
    "leaky_relu": lambda Z: (Z > 0) + 0.01 * (Z <= 0),
}
_STEEPEST = {"gelu": 1.129, "silu": 1.1, "hardswish": 1.5}


@dataclass(frozen=True)
class Softplus:
    """The paper's smooth stand-in for the ReLU, log(1 + exp(theta z)) / theta.

    theta: its sharpness. rho(0) is log(2) / theta where the network's true ReLU has 0, so small values mislead.
    """

    theta: float

    def __post_init__(self) -> None:
        check_range("Softplus", "> 0", theta=self.theta)

    def __call__(self, Z: Tensor) -> Tensor:
        # max(z, 0) + log1p(exp(-|theta z|)) / theta: exp never overflows.
        return Z.clamp_min(0) + torch.log1p(torch.exp(-(self.theta * Z).abs())) / self.theta

    def slope(self, Z: Tensor) -> Tensor:
        return torch.sigmoid(self.theta * Z)
