"""What follows a layer's product: the activation rho(z) and its slope rho'(z), entry by entry."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from feta.errors import check_range


class Activation(StrEnum):
    """What the network applies to the layer's output, as far as a method can use it.

    RELU: max(z, 0), with slope 0 at z = 0.
    LINEAR: nothing, or something that the methods know nothing of; B then holds pre-activations.
    """

    RELU = "relu"
    LINEAR = "linear"

    def __call__(self, Z: Tensor) -> Tensor:
        return torch.relu(Z) if self is Activation.RELU else Z

    def slope(self, Z: Tensor) -> Tensor:
        return (Z > 0).to(Z.dtype) if self is Activation.RELU else torch.ones_like(Z)


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
