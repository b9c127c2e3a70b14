"""Search inside a ball for an input whose class changes: the test every certificate has to pass.

    maximise over ||x' - x|| <= r    max_{j != c} f_j(x') - f_c(x')

by points drawn at random in the ball and by projected gradient ascent from several of them. Finding nothing
proves nothing; finding something inside a certified ball would prove the certificate wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta.certificates.stages import length
from feta.errors import ModelError, check_fields
from feta.gates import gated

Norm = Literal["l2", "linf"]
INSIDE = 1 - 1e-6  # the share of the ball that is searched: casting to float32 must not carry a point out of it


@gated
@dataclass(frozen=True)
class Attack:
    """How hard to search.

    points: random points in each ball.
    restarts: starts of the gradient ascent, for each network.
    steps: steps of each ascent.
    seed: of the random points and starts.
    beyond: multiples of a certified radius at which to search too. There it should find something.
    """

    points: int = 50
    restarts: int = 3
    steps: int = 30
    seed: int = 0
    beyond: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

    def __post_init__(self) -> None:
        check_fields(self, ">= 1", "points", "restarts", "steps")

    @torch.no_grad()
    def changed(
        self, models: Sequence[nn.Module], inputs: Tensor, classes: Tensor, radius: Tensor, norm: Norm = "l2"
    ) -> Tensor:
        """(n,) bool: an input within `radius` of the sample was found that some model does not call `classes`."""
        found = torch.zeros_like(classes, dtype=torch.bool)
        ball = _Ball(inputs.double(), radius.double().view(-1, *[1] * (inputs.ndim - 1)) * INSIDE, norm)
        # Without cuDNN a convolution is a plain sum in float32, which is what certificates speak of.
        with evaluating(*models), torch.backends.cudnn.flags(enabled=False):
            for x in self._points(models, ball, classes, inputs.dtype):
                for model in models:
                    found |= model(x.to(inputs.dtype, copy=True)).argmax(1) != classes
        return found

    def _points(
        self, models: Sequence[nn.Module], ball: "_Ball", classes: Tensor, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """One point of every ball at a time, in float64."""
        generator = torch.Generator(device=classes.device).manual_seed(self.seed)
        for _ in range(self.points):
            yield ball.draw(generator)
        for model in models:
            for _ in range(self.restarts):
                x = ball.draw(generator)
                for step in range(self.steps):  # from half the radius to a hundredth of it
                    share = 0.5 * 0.02 ** (step / max(self.steps - 1, 1))
                    uphill = ball.steepest(-slopes(model, x.to(dtype), classes)[1].double())
                    x = ball.project(x + share * ball.radius * uphill)
                    yield x


@dataclass(frozen=True)
class _Ball:
    """One ball per sample, in float64."""

    centre: Tensor
    radius: Tensor  # (n, 1, ...)
    norm: Norm

    def draw(self, generator: torch.Generator) -> Tensor:
        """Half of the way to all of the way out, in a random direction."""
        noise = torch.empty_like(self.centre).normal_(generator=generator)
        size = 0.5 + 0.5 * torch.empty_like(self.radius).uniform_(generator=generator)
        return self.centre + size * self.radius * self.steepest(noise)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of length 1 along which a function with this gradient grows most."""
        return gradient.sign() if self.norm == "linf" else gradient / self._length(gradient)

    def project(self, x: Tensor) -> Tensor:
        away = x - self.centre
        if self.norm == "linf":
            return self.centre + away.clamp(-self.radius, self.radius)
        return self.centre + away * (self.radius / self._length(away)).clamp_max(1)

    def _length(self, x: Tensor) -> Tensor:
        return length(x).clamp_min(torch.finfo(x.dtype).tiny).view_as(self.radius)


@torch.enable_grad()
def slopes(model: nn.Module, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The margins f_c - max_{j != c} f_j of a batch, and their gradients in the inputs."""
    x = x.detach().requires_grad_()
    scores, own = model(x.clone()), classes[:, None]  # a copy: the model may change its input in place
    lead = scores.gather(1, own).squeeze(1) - scores.scatter(1, own, float("-inf")).amax(1)
    if not lead.requires_grad:
        raise ModelError("the network must have gradients in its input, got none; is its forward pass under no_grad?")
    (gradient,) = torch.autograd.grad(lead.sum(), x)
    return lead.detach(), gradient
