"""Search inside a ball for an input whose class changes: the test every certificate has to pass.

    maximise over ||x' - x|| <= r    max_{j != c} f_j(x') - f_c(x')

by points drawn at random in the ball and by projected gradient ascent from several of them. Finding nothing
proves nothing; finding something inside a certified ball would prove the certificate wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta.errors import ConfigError, ModelError

Norm = Literal["l2", "linf"]
# Points are kept this share inside the ball: casting them to float32 must not carry them out of it.
INSIDE = 1 - 1e-6


@dataclass(frozen=True)
class Attack:
    """How hard to search: random points, and restarts of gradient ascent with so many steps each.

    `beyond` are multiples of a certified radius at which it is tried too, where it should find something.
    """

    points: int = 50
    restarts: int = 3
    steps: int = 30
    seed: int = 0
    beyond: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

    def __post_init__(self) -> None:
        for name in ("points", "restarts", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Attack.{name} must be >= 1, got {getattr(self, name)}")

    def changed(
        self,
        models: Sequence[nn.Module],
        inputs: Tensor,
        classes: Tensor,
        radius: Tensor,
        norm: Norm = "l2",
    ) -> Tensor:
        """(n,) bool: an input within `radius` of the sample was found that some model does not call `classes`."""
        generator = torch.Generator(device=inputs.device).manual_seed(self.seed)
        found = torch.zeros(len(inputs), dtype=torch.bool, device=inputs.device)
        ball = _Ball(inputs.double(), radius.double() * INSIDE, norm)
        # Without cuDNN a convolution is a plain sum in float32, which is what certificates speak of.
        with evaluating(*models), torch.backends.cudnn.flags(enabled=False):
            for _ in range(self.points):
                found |= _wrong(models, ball.draw(generator), classes, inputs.dtype)
            for model in models:
                for _ in range(self.restarts):
                    found |= self._ascend(model, models, ball, classes, inputs.dtype, generator)
        return found

    def _ascend(
        self,
        model: nn.Module,
        models: Sequence[nn.Module],
        ball: _Ball,
        classes: Tensor,
        dtype: torch.dtype,
        generator: torch.Generator,
    ) -> Tensor:
        """Steps that shrink from half the radius to a hundredth of it, every point on the way looked at."""
        x = ball.draw(generator)
        found = torch.zeros_like(classes, dtype=torch.bool)
        for step in range(self.steps):
            share = 0.5 * 0.02 ** (step / max(self.steps - 1, 1))
            x = ball.project(x + share * ball.radius * ball.steepest(-slopes(model, x.to(dtype), classes)[1]))
            found |= _wrong(models, x, classes, dtype)
        return found


@dataclass(frozen=True)
class _Ball:
    """One ball per sample, in float64; `radius` has the shape (n, 1, ...)."""

    centre: Tensor
    flat_radius: Tensor
    norm: Norm

    @property
    def radius(self) -> Tensor:
        return self.flat_radius.view(-1, *[1] * (self.centre.ndim - 1))

    def draw(self, generator: torch.Generator) -> Tensor:
        """Half of the way to all of the way out, in a random direction."""
        shape, device = self.centre.shape, self.centre.device
        noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        size = 0.5 + 0.5 * torch.rand(len(noise), generator=generator, device=device, dtype=torch.float64)
        return self.centre + size.view_as(self.radius) * self.radius * self.steepest(noise)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of length 1 along which a function with this gradient grows most."""
        if self.norm == "linf":
            return gradient.double().sign()
        return gradient.double() / _length(gradient).clamp_min(torch.finfo(torch.float64).tiny)

    def project(self, x: Tensor) -> Tensor:
        away = x - self.centre
        if self.norm == "linf":
            return self.centre + away.clamp(-self.radius, self.radius)
        nearer: Tensor = away * (self.radius / _length(away).clamp_min(1e-300)).clamp_max(1)
        return self.centre + nearer


def _length(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x.double().flatten(1), dim=1)
    return norms.view(-1, *[1] * (x.ndim - 1))


def margins(scores: Tensor, classes: Tensor) -> Tensor:
    """f_c - max_{j != c} f_j for each row."""
    own = scores.gather(1, classes[:, None]).squeeze(1)
    others = scores.scatter(1, classes[:, None], float("-inf"))
    lead: Tensor = own - others.amax(1)
    return lead


@torch.no_grad()
def _wrong(models: Sequence[nn.Module], x: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
    answers = [model(x.to(dtype, copy=True)).argmax(1) != classes for model in models]
    return torch.stack(answers).any(0)


@torch.enable_grad()
def slopes(model: nn.Module, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The margins of a batch, and their gradients in the inputs."""
    x = x.detach().requires_grad_()
    lead = margins(model(x.clone()), classes)  # a copy: the model may change its input in place
    if not lead.requires_grad:
        raise ModelError(
            "the network must have gradients in its input, got none; is its forward pass under no_grad?"
        )
    (gradient,) = torch.autograd.grad(lead.sum(), x)
    return lead.detach(), gradient
